"""``hone tenants``: list, create, change, usage."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from core.errors import InvalidRequest
from hone.admin_client import local_admin
from hone.commands.allowances import (
    AllModels,
    Limits,
    Models,
    Training,
    allowance,
    changes,
    limits_text,
    models_body,
    models_text,
)
from hone.output import clear_errors, console, table
from hone.settings import load_settings

app = typer.Typer(no_args_is_help=True, help="Tenants: what they may use, and what they used.")

TenantId = Annotated[str, typer.Argument(help="Id of the Tenant.")]
Redact = Annotated[bool | None, typer.Option("--redact/--no-redact", help="Take personal data out before storage.")]


@app.command("list")
@clear_errors
def list_() -> None:
    """List Tenants with their limits."""
    with local_admin(load_settings()) as admin:
        tenants = admin.get("/tenants")
    rows = table("tenant", "name", "trains", "models", "limits")
    for tenant in tenants:
        rows.add_row(
            escape(tenant["id"]),
            escape(tenant["name"]),
            "yes" if tenant["training_granted"] else "no",
            escape(models_text(tenant["models"])),
            limits_text(tenant["allowance"]),
        )
    console().print(rows)


@app.command()
@clear_errors
def create(
    name: Annotated[str, typer.Argument(help="Name of the Tenant.")],
    train: Training = None,
    redact: Redact = None,
    model: Models = None,
    limit: Limits = None,
) -> None:
    """Create a Tenant; 'hone keys create' gives it keys."""
    allowed = allowance(None, limit)
    body = changes(name=name, training_granted=train, redact=redact, allowance=allowed)
    with local_admin(load_settings()) as admin:
        tenant = admin.post("/tenants", body | models_body(model))
    console().print(f"{escape(tenant['id'])} created: {limits_text(tenant['allowance'])}")


@app.command()
@clear_errors
def change(
    tenant_id: TenantId,
    name: Annotated[str | None, typer.Option(help="A new name.")] = None,
    train: Training = None,
    redact: Redact = None,
    model: Models = None,
    all_models: AllModels = False,
    limit: Limits = None,
) -> None:
    """Change what is given; everything else stays."""
    with local_admin(load_settings()) as admin:
        allowed = allowance(admin.get(f"/tenants/{tenant_id}")["allowance"], limit)
        body = changes(name=name, training_granted=train, redact=redact, allowance=allowed)
        tenant = admin.patch(f"/tenants/{tenant_id}", body | models_body(model, every=all_models))
    console().print(f"{escape(tenant['id'])}: {limits_text(tenant['allowance'])}")


@app.command()
@clear_errors
def usage(tenant_id: TenantId, month: Annotated[str | None, typer.Option(help="Such as 2026-11.")] = None) -> None:
    """Show what a Tenant's keys used, month by month."""
    with local_admin(load_settings()) as admin:
        used = admin.get(f"/tenants/{tenant_id}/usage", month=month)
    rows = table("month", "key", "requests", "prompt tokens", "completion tokens", "cost")
    for row in used:
        rows.add_row(
            escape(row["month"]),
            escape(row["key_id"]),
            f"{row['requests']:,}",
            f"{row['prompt_tokens']:,}",
            f"{row['completion_tokens']:,}",
            f"${row['cost_microdollars'] / 1e6:,.2f}",
        )
    console().print(rows)


@app.command()
@clear_errors
def erase(
    tenant_id: TenantId,
    confirm: Annotated[str | None, typer.Option(help="The Tenant's id once more; without it, you are asked.")] = None,
) -> None:
    """Erase a Tenant, its keys and everything that is held about it."""
    said = confirm or typer.prompt(f"This cannot be undone. Type the id of the Tenant ({tenant_id})")
    with local_admin(load_settings()) as admin:
        tombstone = admin.delete(f"/tenants/{tenant_id}", confirm=said)
    removed = ", ".join(f"{number} {name}" for name, number in sorted(tombstone["counts"].items()))
    console().print(f"{escape(tenant_id)} is gone ({removed}); proof: {tombstone['id']}")


@app.command()
@clear_errors
def export(
    tenant_id: TenantId, file: Annotated[Path, typer.Argument(help="A new file, such as tenant.tar.gz.")]
) -> None:
    """Export everything that is held about a Tenant: JSON lines and a manifest, in a gzipped tar."""
    if file.exists():
        raise InvalidRequest(f"{file} exists already", hint="name a new file")
    with local_admin(load_settings()) as admin:
        size = admin.download(f"/tenants/{tenant_id}/export", file)
    console().print(f"{size:,} bytes in {file}", markup=False)
