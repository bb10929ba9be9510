"""The whole error tree. The HTTP status and OpenAI ``type`` and ``code`` belong to the class.

HoneError
├── ConfigurationError            a key is unknown, malformed or in conflict with another
├── RequestError                  the caller's fault
│   ├── InvalidRequest            400
│   │   └── ContextLengthExceeded prompt and answer are longer than the model's context
│   ├── AuthenticationFailed      401
│   ├── PermissionDenied          403
│   ├── NotFound                  404
│   │   └── ModelNotFound
│   ├── Conflict                  409
│   │   ├── InvalidTransition
│   │   └── VersionNotServed
│   └── RateLimited               429
│       └── QuotaExceeded         the budget of the month is used up
├── EngineError                   502: the engine answered wrongly or not at all
│   ├── EngineUnavailable         503
│   ├── EngineTimeout             504
│   ├── AdapterRejected           the engine refused an adapter
│   ├── EngineUnsupported         409: the engine cannot do that as it was started
│   ├── ProviderRefused           an outside provider refused this installation's key
│   └── ProbeFailed               a loaded version does not reproduce its Probe
├── SandboxError                  infrastructure of the sandbox, never the fault of the code inside
├── VerifierError                 a verifier crashed: an invalid Verdict, never a reward of zero
├── TaskError                     a Task or Task folder is malformed
├── StoreError                    the database or blob store failed
│   ├── StoreFull
│   ├── LeaseLost                 the job now belongs to another worker
│   └── CorruptArtefact           a checksum does not match
├── LearnerError                  training cannot go on
│   └── Diverged                  a loss or gradient is not finite
└── MachineError                  the machine lacks something: compiler, port, disk, bubblewrap
"""

from collections.abc import Iterator
from contextlib import contextmanager


class HoneError(Exception):
    """Base of every error that Hone raises on purpose; ``hint`` says what the caller can do."""

    status = 500
    type = "server_error"
    code = "internal_error"

    def __init__(self, message: str, *, hint: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param


class ConfigurationError(HoneError):
    """A configuration key is unknown, malformed, or in conflict with another key."""

    code = "configuration_error"


class RequestError(HoneError):
    """The caller asked for something that cannot be done as asked."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class InvalidRequest(RequestError):
    """The request is malformed or impossible."""


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer together are longer than the model's context."""

    code = "context_length_exceeded"


class AuthenticationFailed(RequestError):
    """No valid API key came with the request."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class PermissionDenied(RequestError):
    """The API key lacks the scope or the model."""

    status = 403
    type = "permission_error"
    code = "permission_denied"


class NotFound(RequestError):
    """The named thing does not exist, or not for this tenant."""

    status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    """No Policy, Base or outside model has this name."""

    code = "model_not_found"


class Conflict(RequestError):
    """The request contradicts the present state."""

    status = 409
    code = "conflict"


class InvalidTransition(Conflict):
    """A lifecycle's table does not allow this step."""

    code = "invalid_transition"


class VersionNotServed(Conflict):
    """The pinned PolicyVersion exists but no replica holds it."""

    code = "version_not_served"


class RateLimited(RequestError):
    """A request, token, stream or budget limit is reached.

    ``retry_after_seconds``: when it is worth trying again; None: not known, infinite: never as it stands.
    ``headers`` belong on the answer.
    """

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        param: str | None = None,
        retry_after_seconds: float | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message, hint=hint, param=param)
        self.retry_after_seconds = retry_after_seconds
        self.headers = headers


class QuotaExceeded(RateLimited):
    """The budget of the month is used up."""

    type = "insufficient_quota"
    code = "insufficient_quota"


class EngineError(HoneError):
    """The engine answered wrongly or not at all."""

    status = 502
    code = "engine_error"


class EngineUnavailable(EngineError):
    """No live Deployment can answer now; trying again later may help."""

    status = 503
    code = "engine_unavailable"


class EngineTimeout(EngineError):
    """The engine was silent for longer than it may be."""

    status = 504
    code = "engine_timeout"


class AdapterRejected(EngineError):
    """The engine refused to load an adapter."""

    code = "adapter_rejected"


class EngineUnsupported(EngineError):
    """The engine, as it was started, cannot do what was asked of it."""

    status = 409
    type = "invalid_request_error"
    code = "engine_unsupported"


class ProviderRefused(EngineError):
    """The provider of an outside model refused the key that this installation has for it."""

    code = "provider_refused"


class ProbeFailed(EngineError):
    """A loaded version does not reproduce the log-probs of its Probe."""

    code = "probe_failed"


class SandboxError(HoneError):
    """The sandbox itself failed; the code inside is not to blame and the attempt must be retried."""

    code = "sandbox_error"


class VerifierError(HoneError):
    """A verifier crashed: the Verdict is ``invalid``, never a reward of zero."""

    code = "verifier_error"


class TaskError(HoneError):
    """A Task, or a folder of Tasks, is malformed."""

    status = 400
    type = "invalid_request_error"
    code = "task_error"


class StoreError(HoneError):
    """The database or the blob store failed."""

    status = 503
    code = "store_error"


class StoreFull(StoreError):
    """No room is left where blobs are kept."""

    code = "store_full"


class LeaseLost(StoreError):
    """The lease on a job has passed to another worker; this worker's result is not taken."""

    status = 409
    code = "lease_lost"


class CorruptArtefact(StoreError):
    """An artefact's checksum does not match what was recorded for it."""

    status = 409
    code = "corrupt_artefact"


class LearnerError(HoneError):
    """Training cannot go on."""

    code = "learner_error"


class Diverged(LearnerError):
    """A loss or gradient is not finite: the step was not taken, and the weights before it are whole."""


class MachineError(HoneError):
    """The machine lacks something that Hone needs: a compiler, a port, disk, bubblewrap."""

    code = "machine_error"


@contextmanager
def boundary(error_class: type[HoneError], doing: str) -> Iterator[None]:
    """Attribute whatever escapes the block to ``error_class``; Hone's own errors pass unchanged."""
    try:
        yield
    except HoneError:
        raise
    except Exception as error:
        raise error_class(f"{doing}: {type(error).__name__}: {error}") from error
