"""``hone keys``: list, create, change, rotate, revoke."""

import time
from typing import Annotated

import typer
from rich.markup import escape

from hone.admin_client import local_admin
from hone.commands.allowances import (
    AllModels,
    Limits,
    Models,
    Training,
    allowance,
    changes,
    day,
    limits_text,
    models_body,
    models_text,
)
from hone.output import clear_errors, console, table
from hone.settings import load_settings

app = typer.Typer(no_args_is_help=True, help="API keys of Tenants.")

KeyId = Annotated[str, typer.Argument(help="Id of the key.")]
Scopes = Annotated[
    list[str] | None, typer.Option("--scope", help="inference, feedback, admin:read or admin:write. Repeat.")
]
ExpiresInDays = Annotated[float | None, typer.Option(min=0, help="Days from now until the key ends.")]
_DAY_SECONDS = 86_400


@app.command("list")
@clear_errors
def list_(tenant: Annotated[str | None, typer.Option(help="Only of this Tenant (id).")] = None) -> None:
    """List keys with their scopes and limits, never their plaintext."""
    with local_admin(load_settings()) as admin:
        keys = admin.get("/keys", tenant_id=tenant)
    rows = table("key", "tenant", "name", "scopes", "trains", "models", "limits", "ends", "state")
    for key in keys:
        rows.add_row(
            escape(key["id"]),
            escape(key["tenant_id"]),
            escape(key["name"]),
            ", ".join(key["scopes"]),
            "yes" if key["training_granted"] else "no",
            escape(models_text(key["models"])),
            limits_text(key["allowance"]),
            day(key["expires_at"]),
            "revoked" if key["revoked"] else "valid",
        )
    console().print(rows)


@app.command()
@clear_errors
def create(
    name: Annotated[str, typer.Argument(help="Name of the key.")],
    tenant: Annotated[str | None, typer.Option(help="Id of the Tenant; default: the local one.")] = None,
    scope: Scopes = None,
    train: Training = None,
    model: Models = None,
    expires_in_days: ExpiresInDays = None,
    limit: Limits = None,
) -> None:
    """Create a key; its plaintext is printed this one time."""
    allowed = allowance(None, limit)
    body = changes(
        name=name,
        tenant_id=tenant,
        scopes=scope,
        training_granted=train,
        expires_at=_ends(expires_in_days),
        allowance=allowed,
    )
    with local_admin(load_settings()) as admin:
        minted = admin.post("/keys", body | models_body(model))
    console().print(f"{escape(minted['key']['id'])} created; its plaintext is shown only now:")
    typer.echo(minted["plaintext"])


@app.command()
@clear_errors
def change(
    key_id: KeyId,
    name: Annotated[str | None, typer.Option(help="A new name.")] = None,
    scope: Scopes = None,
    train: Training = None,
    model: Models = None,
    all_models: AllModels = False,
    expires_in_days: ExpiresInDays = None,
    limit: Limits = None,
) -> None:
    """Change what is given; everything else stays."""
    with local_admin(load_settings()) as admin:
        allowed = allowance(admin.get(f"/keys/{key_id}")["allowance"], limit)
        body = changes(
            name=name, scopes=scope, training_granted=train, expires_at=_ends(expires_in_days), allowance=allowed
        )
        key = admin.patch(f"/keys/{key_id}", body | models_body(model, every=all_models))
    console().print(f"{escape(key['id'])}: {', '.join(key['scopes'])}; {limits_text(key['allowance'])}")


@app.command()
@clear_errors
def rotate(
    key_id: KeyId,
    grace_seconds: Annotated[float, typer.Option(min=0, help="How long the old plaintext stays valid.")] = 0.0,
) -> None:
    """Give a key a new plaintext, printed this one time."""
    with local_admin(load_settings()) as admin:
        minted = admin.post(f"/keys/{key_id}/rotate", {"grace_seconds": grace_seconds})
    old = f"is valid until {day(minted['key']['previous_until'])}" if grace_seconds else "is not valid any more"
    console().print(f"{escape(key_id)} rotated, the old plaintext {old}; the new one is shown only now:")
    typer.echo(minted["plaintext"])


@app.command()
@clear_errors
def revoke(key_id: KeyId) -> None:
    """End a key for good."""
    with local_admin(load_settings()) as admin:
        key = admin.delete(f"/keys/{key_id}")
    console().print(f"{escape(key['id'])} ({escape(key['name'])}) is revoked")


def _ends(days: float | None) -> float | None:
    return None if days is None else time.time() + days * _DAY_SECONDS
