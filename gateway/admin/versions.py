"""Versions: aliases, notes, lineage, signatures and retention."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field, ValidationError

from core.alias import Alias
from core.errors import InvalidRequest
from core.policy import PolicyVersion
from gateway.admin.schemas import Body, VersionNumber
from gateway.callers import PathId
from gateway.dependencies import FIND_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer
from gateway.registry.desk import Verification, aliases_of
from gateway.registry.lineage import VersionLineage, lineage_of

router = APIRouter(prefix="/policies/{name}", tags=["Versions"])

PathNumber = Annotated[int, Path(ge=0, le=2**31 - 1)]


class AliasTarget(Body):
    """Where an alias points."""

    version: VersionNumber


class NewNote(Body):
    """A remark on a version."""

    text: str = Field(min_length=1, max_length=4_000)


class Pruning(Body):
    """Which folders to delete; what is left out is as configured."""

    keep: int | None = Field(default=None, ge=0)
    """The newest this many stay."""
    days: float | None = Field(default=None, ge=0, le=100_000)
    """Younger ones stay."""
    dry_run: bool = True
    """Say which would go, and delete nothing."""


class SignatureView(Body):
    """A signature as it is stored."""

    checkpoint_id: str
    signature: str | None
    signed_by: str | None


@router.get("/aliases", summary="List aliases", responses=FIND_ERRORS)
async def list_aliases(name: PathId, gateway: GatewayParts, _key: Reader) -> dict[str, int]:
    """Alias → version: `promoted`, `previous`, `candidate` and the free ones."""
    async with gateway.store.reading() as work:
        return await aliases_of(work, name)


@router.put("/aliases/{alias}", summary="Set an alias", responses=WRITE_ERRORS)
async def set_alias(name: PathId, alias: PathId, body: AliasTarget, gateway: GatewayParts, key: Writer) -> Alias:
    """`NAME@ALIAS` means that version from now on; Episodes in flight end on the one that they began with."""
    try:
        wanted = Alias(policy=name, name=alias, version=body.version)
    except ValidationError as error:
        raise InvalidRequest(error.errors()[0]["msg"].removeprefix("Value error, "), param="alias") from error
    found = await gateway.versions.set_alias(key, wanted)
    await gateway.routing.refresh()
    return found


@router.delete("/aliases/{alias}", summary="Remove an alias", responses=WRITE_ERRORS)
async def drop_alias(name: PathId, alias: PathId, gateway: GatewayParts, key: Writer) -> dict[str, int]:
    """The aliases that are left. `NAME@ALIAS` is refused from now on; `candidate` follows Releases again."""
    await gateway.versions.drop_alias(key, name, alias)
    await gateway.routing.refresh()
    async with gateway.store.reading() as work:
        return await aliases_of(work, name)


@router.post("/versions/{number}/notes", summary="Add a note", status_code=201, responses=WRITE_ERRORS)
async def add_note(
    name: PathId, number: PathNumber, body: NewNote, gateway: GatewayParts, key: Writer
) -> PolicyVersion:
    """The version with all its notes; notes are only ever added."""
    return await gateway.versions.add_note(key, name, number, body.text)


@router.get("/versions/{number}/lineage", summary="Show what a version was trained on", responses=FIND_ERRORS)
async def show_lineage(name: PathId, number: PathNumber, gateway: GatewayParts, _key: Reader) -> VersionLineage:
    """The Episodes behind a version, its ancestors' included, and which of them were withdrawn since."""
    async with gateway.store.reading() as work:
        return await lineage_of(work, name, number)


@router.get("/versions/{number}/verify", summary="Verify a version's files", responses=FIND_ERRORS)
async def verify(name: PathId, number: PathNumber, gateway: GatewayParts, _key: Reader) -> Verification:
    """Checksum and signature, read from the folder as this gateway sees it."""
    return await gateway.versions.verify(name, number)


@router.post("/versions/{number}/sign", summary="Sign a version", responses=WRITE_ERRORS)
async def sign(name: PathId, number: PathNumber, gateway: GatewayParts, key: Writer) -> SignatureView:
    """For a version that was made while signing was off."""
    signed = await gateway.versions.sign(key, name, number)
    return SignatureView(checkpoint_id=signed.id, signature=signed.signature, signed_by=signed.signed_by)


@router.post("/prune", summary="Delete checkpoint folders by rule", responses=WRITE_ERRORS)
async def prune(name: PathId, body: Pruning, gateway: GatewayParts, key: Writer) -> list[PolicyVersion]:
    """Versions whose folders go; records and lineage stay."""
    return await gateway.versions.prune(key, name, keep=body.keep, days=body.days, dry_run=body.dry_run)


@router.get("/tainted", summary="List versions that saw withdrawn Episodes", responses=FIND_ERRORS)
async def tainted(name: PathId, gateway: GatewayParts, _key: Reader) -> list[PolicyVersion]:
    """In ascending order, each with `saw_withdrawn`."""
    async with gateway.store.reading() as work:
        await work.policies.get(name)
        return [one for one in await work.versions.list(name) if one.saw_withdrawn]
