"""Every exception that this package raises on purpose.

What belongs here: exception classes, which carry the ids they speak of. What does not: handling; a
layer raises, and the layer that can act decides. Failures of one text are no exceptions of this
tree: they are `records.Reject` rows, and the run goes on.

    EmbeddingsError
    ├── ConfigurationError           wrong before any work starts: change a file or a run's config
    │   ├── CorpusSpecError          a corpus YAML
    │   ├── RunConfigError           a run's config
    │   ├── UnknownModelError        a model name without a registry entry
    │   ├── ModelNotInStoreError     a model that is not in the store, where nothing may be fetched
    │   ├── GatedModelError          a model whose licence has to be accepted on the hub first
    │   ├── UnsafeModelError         a model's folder that would run code of its own
    │   ├── DeviceUnavailableError   a device that this machine does not have
    │   ├── UnknownDeviceError       a name that is no device's, or a device of another model host
    │   ├── InvalidRequestError      a request to a model host that cannot be read
    │   ├── RequestTooLargeError     an application batch that is larger than a model host takes
    │   ├── LocationNotFoundError    a source or model location
    │   ├── DeliveryNotFoundError    a delivery that the source does not have
    │   ├── LocationOwnedError       an output location of another corpus
    │   └── ColumnError              a column that is missing, or of a type that holds no text
    ├── SourceUnreadableError        a source file that cannot be opened as what it claims to be
    ├── StorageError
    │   ├── LocationUnavailableError an object store that refuses, or does not answer
    │   ├── SourceChangedError       an object that was replaced while it was read
    │   ├── OutputUnwritableError    a disk that is full, read-only or not ours
    │   ├── TooManyRejectsError      more rejects than the corpus allows
    │   ├── ManifestError            a manifest that is missing, broken or too new
    │   ├── PublishConflictError     another run published the delivery meanwhile
    │   └── VerificationError        a part or a published set that breaks its identities
    └── ModelError
        ├── ModelLoadError
        ├── ModelSelfTestError       a loaded model whose vectors are not what they have to be
        ├── ModelFetchError          a download that did not come to its end
        ├── ModelDigestError         files of a model that are not the ones that were pinned or fetched
        ├── BatchFailedError         the model failed on an application batch as a whole
        ├── ModelNotInCacheError     an eject of what is not loaded
        ├── ModelAmbiguousError      a name that two loaded models share
        ├── ModelInUseError          an eject that waited for the model's users in vain
        ├── ModelDoesNotFitError     a load for which the device has no room
        ├── ModelEjectedError        an embed call whose model was ejected meanwhile, by force
        ├── EmbeddingCancelledError  an embed call whose caller gave up
        ├── DeviceFailedError        a device that can compute no more, until its process starts anew
        └── HostUnavailableError     a model host that does not start, or does not answer
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar


class EmbeddingsError(Exception):
    """Base of all errors of this package; the message ends with what to do.

    `code` names the kind of error for programs: in the bodies of a model host and in `--json` output.
    """

    code: ClassVar[str] = "embeddings_error"

    @classmethod
    def restored(cls, message: str, ids: dict[str, Any]) -> "EmbeddingsError":
        """Return an error as another process raised it, with the ids that it carried there."""
        error = cls.__new__(cls, message)
        error.args = (message,)
        error.__dict__.update(ids)
        return error


class ConfigurationError(EmbeddingsError):
    """Something that a person has configured cannot work."""

    code = "configuration_error"


class CorpusSpecError(ConfigurationError):
    """A corpus YAML has an unknown, unfinished or contradictory field."""

    code = "corpus_spec_error"


class RunConfigError(ConfigurationError):
    """A field of a run's config is out of its bounds."""

    code = "run_config_error"


class UnknownModelError(ConfigurationError):
    """A model name that the registry does not have and that comes without a source."""

    code = "unknown_model"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = sorted(known)
        super().__init__(
            f"model.name '{name}' is not in the registry{did_you_mean(name, self.known)}; "
            f"use a known name ({', '.join(self.known)}) or add model.source with a folder or package:module/path"
        )


class ModelNotInStoreError(ConfigurationError):
    """A model is not in the model store, and this process may not fetch it."""

    code = "model_not_in_store"

    def __init__(self, name: str, source: str, store: str, command: str) -> None:
        self.name = name
        self.source = source
        self.store = store
        super().__init__(
            f"model '{name}' ({source}) is not in the model store '{store}', and nothing is fetched unless "
            f"EMBEDDINGS_MODEL_DOWNLOAD=allowed; run `{command}` where the network is, with EMBEDDINGS_MODEL_STORE set "
            f"to this store, or with `--to {name.rsplit('/', 1)[-1]}.zip`, which is a source as well"
        )


class GatedModelError(ConfigurationError):
    """A model hub gives a model only to those who have accepted its licence, or may see it."""

    code = "model_gated"

    def __init__(self, name: str, address: str, *, token_given: bool) -> None:
        self.name = name
        remedy = (
            "the token in HF_TOKEN is not of an account that has"
            if token_given
            else "then set HF_TOKEN to a token of that account: there is none in the environment"
        )
        super().__init__(
            f"model '{name}' is gated or private, and the hub does not hand it out; accept its licence on {address}, "
            f"{remedy}"
        )


class UnsafeModelError(ConfigurationError):
    """A model's folder would run code of its own, write outside of itself, or is not what it says."""

    code = "model_unsafe"

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        self.name = name
        super().__init__(f"model '{name}' {problem}; {remedy}")


class DeviceUnavailableError(ConfigurationError):
    """The run asks for a device that cannot be used on this machine."""

    code = "device_unavailable"

    def __init__(self, device: str, reason: str) -> None:
        self.device = device
        self.reason = reason
        super().__init__(
            f"execution.config selects '{device}', but this machine has no usable {device.upper()} device: {reason}; "
            "choose execution: {config: {cpu: {}}} or run it on a machine that has one"
        )


class UnknownDeviceError(ConfigurationError):
    """A name is not that of a device of this machine, or not that of the model host's own device."""

    code = "unknown_device"

    def __init__(self, device: str, here: Sequence[str], why: str = "") -> None:
        self.device = device
        self.here = list(here)
        super().__init__(f"device '{device}' is unknown; this machine has {', '.join(self.here)}{why}: use one of them")


class InvalidRequestError(ConfigurationError):
    """A request to a model host cannot be read as what its route takes."""

    code = "invalid_request"

    def __init__(self, problem: str) -> None:
        super().__init__(f"the request cannot be read: {problem}; see the host's /openapi.json for what it takes")


class RequestTooLargeError(ConfigurationError):
    """An application batch has more bytes than a model host takes at once."""

    code = "request_too_large"

    def __init__(self, most: int) -> None:
        self.most = most
        super().__init__(
            f"the request has more than the {most:,} bytes that a model host takes at once; "
            "use a smaller application_batch_size"
        )


class LocationNotFoundError(ConfigurationError):
    """A location that a corpus or a model spec names does not exist."""

    code = "location_not_found"

    def __init__(self, field: str, location: str, hint: str) -> None:
        self.field = field
        self.location = location
        super().__init__(f"{field} '{location}' does not exist; {hint}")


class DeliveryNotFoundError(ConfigurationError):
    """A delivery that its corpus's source does not have, or not any more."""

    code = "delivery_not_found"

    def __init__(self, corpus: str, name: str, location: str, known: Iterable[str]) -> None:
        self.corpus = corpus
        self.name = name
        self.location = location
        names = sorted(known)
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        super().__init__(
            f"delivery '{name}' of corpus '{corpus}' is not in source.location '{location}'"
            f"{did_you_mean(name, names)}; deliveries there: {shown or 'none'}; put it back, name one of these, or "
            f"remove what is published of it with `embeddings gc {corpus} --withdrawn`"
        )


class LocationOwnedError(ConfigurationError):
    """An output location holds the dataset of another corpus."""

    code = "location_owned"

    def __init__(self, location: str, owner: str, corpus: str) -> None:
        self.location = location
        self.owner = owner
        self.corpus = corpus
        super().__init__(
            f"output.location '{location}' holds the dataset of corpus '{owner}', so corpus '{corpus}' cannot write "
            "there; give each corpus a location of its own"
        )


class ColumnError(ConfigurationError):
    """A source lacks a column that the corpus names, or the column holds no text."""

    code = "column_error"

    def __init__(self, field: str, column: str, problem: str, remedy: str) -> None:
        self.field = field
        self.column = column
        super().__init__(f"{field} names the column '{column}', which {problem}; {remedy}")


class SourceUnreadableError(EmbeddingsError):
    """A source file cannot be read as the format that the corpus declares."""

    code = "source_unreadable"

    def __init__(self, path: str, kind: str, reason: str) -> None:
        self.path = path
        super().__init__(
            f"source file '{path}' cannot be read as {kind} ({reason}); repair or remove the file, then run again"
        )


class StorageError(EmbeddingsError):
    """Files of a corpus are not as they have to be."""

    code = "storage_error"


class LocationUnavailableError(StorageError):
    """An object store refuses a request, or does not answer after several attempts."""

    code = "location_unavailable"

    def __init__(self, location: str, reason: str) -> None:
        self.location = location
        super().__init__(
            f"'{location}' cannot be reached ({reason}); check the bucket, the credentials and the network, then run "
            "again: finished parts are kept"
        )


class SourceChangedError(StorageError):
    """An object was replaced or removed while it was being read."""

    code = "source_changed"

    def __init__(self, location: str) -> None:
        self.location = location
        super().__init__(f"'{location}' was replaced or removed while it was read; run again when it is complete")


class OutputUnwritableError(StorageError):
    """A file cannot be written: the disk is full, read-only, or not this user's."""

    code = "output_unwritable"

    def __init__(self, location: str, reason: str) -> None:
        self.location = location
        super().__init__(
            f"'{location}' cannot be written ({reason}); free space or correct the permissions, then run again: "
            "finished parts are kept"
        )


class TooManyRejectsError(StorageError):
    """More texts were rejected than `max_rejects` of the corpus allows."""

    code = "too_many_rejects"

    def __init__(self, rejected: int, read: int, limit: str, reasons: str, location: str) -> None:
        self.rejected = rejected
        self.read = read
        self.limit = limit
        super().__init__(
            f"{rejected} of {read} texts were rejected ({reasons}), more than max_rejects allows ({limit}); look at "
            f"them in '{location}', then repair the source or raise max_rejects"
        )


class ManifestError(StorageError):
    """A manifest is missing, cannot be parsed, or has a newer format version."""

    code = "manifest_error"


class PublishConflictError(StorageError):
    """Another run published, or read anew, the same delivery since this run read its records."""

    code = "publish_conflict"

    def __init__(self, delivery: str, other: str, what: str = "") -> None:
        self.delivery = delivery
        happened = (
            f"delivery '{delivery}': run '{other}' {what}"
            if what
            else f"delivery '{delivery}' was published by run '{other}' after this run had read its records"
        )
        super().__init__(f"{happened}; run the job again: what is published already is skipped, not computed")


class VerificationError(StorageError):
    """A part's file, or the set about to be published, contradicts its manifest."""

    code = "verification_error"


class ModelError(EmbeddingsError):
    """Base of what goes wrong with a loaded model."""

    code = "model_error"


class ModelLoadError(ModelError):
    """A model's folder exists, but no encoder could be built from it."""

    code = "model_load_failed"

    def __init__(self, name: str, reason: str, remedy: str) -> None:
        self.name = name
        super().__init__(f"model '{name}' could not be loaded: {reason}; {remedy}")


class ModelSelfTestError(ModelError):
    """A model was loaded, but its vectors of some fixed texts are not what they have to be."""

    code = "model_self_test_failed"

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        super().__init__(
            f"model '{name}' was loaded, but {problem} for fixed texts; fetch its files again, and check the versions "
            "of torch, transformers and sentence-transformers against constraints.txt"
        )


class ModelFetchError(ModelError):
    """A model's files could not be brought into the store; what has arrived is kept for the next attempt."""

    code = "model_fetch_failed"

    def __init__(self, name: str, reason: str, remedy: str) -> None:
        self.name = name
        super().__init__(f"model '{name}' could not be fetched: {reason}; {remedy}: what has arrived is kept")


class ModelDigestError(ModelError):
    """A file of a model has other bytes than those that were pinned or fetched."""

    code = "model_digest"

    def __init__(self, name: str, file: str, remedy: str) -> None:
        self.name = name
        self.file = file
        super().__init__(f"file '{file}' of model '{name}' does not have the bytes that it has to have; {remedy}")


class BatchFailedError(ModelError):
    """The model failed on an application batch as a whole, not on single texts of it."""

    code = "batch_failed"

    def __init__(self, first: str, last: str, cause: Exception) -> None:
        self.first = first
        self.last = last
        super().__init__(f"the texts of records '{first}' to '{last}' could not be embedded: {cause}")


class ModelNotInCacheError(ModelError):
    """A model that is asked for by name is not loaded on that device."""

    code = "model_not_in_cache"

    def __init__(self, name: str, device: str, loaded: Sequence[str]) -> None:
        self.name = name
        self.device = device
        self.loaded = list(loaded)
        there = ", ".join(self.loaded) or "nothing"
        super().__init__(
            f"model '{name}' is not loaded on device '{device}' (loaded there: {there}); "
            "name one of these, or load it first"
        )


class ModelAmbiguousError(ModelError):
    """Two models of one name are loaded on a device."""

    code = "model_ambiguous"

    def __init__(self, name: str, device: str, candidates: Sequence[str]) -> None:
        self.name = name
        self.device = device
        self.candidates = list(candidates)
        super().__init__(
            f"the name '{name}' stands for {len(self.candidates)} models on device '{device}' "
            f"({'; '.join(self.candidates)}); give the fingerprint of one of them as well"
        )


class ModelInUseError(ModelError):
    """A model is not ejected, since its users did not finish in time."""

    code = "model_in_use"

    def __init__(self, name: str, device: str, users: int, seconds: float) -> None:
        self.name = name
        self.device = device
        self.users = users
        super().__init__(
            f"model '{name}' on device '{device}' is still in use by {users} after {seconds:g} s and was not ejected; "
            "try again later, or use force to cancel what is under way"
        )


class ModelDoesNotFitError(ModelError):
    """A device has no room for a model, by the cache's budget or by the driver's word."""

    code = "model_does_not_fit"

    def __init__(self, name: str, device: str, needed: int, room: str, remedy: str) -> None:
        self.name = name
        self.device = device
        self.needed = needed
        super().__init__(f"model '{name}' needs {needed:,} bytes on device '{device}', which has {room}; {remedy}")


class ModelEjectedError(ModelError):
    """A model was ejected by force while texts were being computed with it."""

    code = "model_ejected"

    def __init__(self, name: str, device: str) -> None:
        self.name = name
        self.device = device
        super().__init__(
            f"model '{name}' was ejected by force from device '{device}' while texts were being embedded with it; "
            "run again, which loads it again"
        )


class DeviceFailedError(ModelError):
    """A device has failed in a way that lasts as long as the process that uses it."""

    code = "device_failed"

    def __init__(self, device: str, reason: str) -> None:
        self.device = device
        super().__init__(
            f"device '{device}' can compute no more in this process ({reason}); "
            "the model host leaves and the next request starts a new one: try again"
        )


class HostUnavailableError(ModelError):
    """The model host of a device does not start, or does not answer."""

    code = "host_unavailable"

    def __init__(self, device: str, problem: str, log: Sequence[str], by_hand: str) -> None:
        self.device = device
        self.log = list(log)
        lines = " | ".join(line.strip() for line in self.log) or "nothing"
        super().__init__(
            f"the model host of device '{device}' {problem} (last lines of its log: {lines}); start it by hand with "
            f"`{by_hand}` to see why, or use mode: in_process"
        )


class EmbeddingCancelledError(ModelError):
    """The caller of `Encoder.embed` set its cancel event while texts were being computed."""

    code = "embedding_cancelled"

    def __init__(self) -> None:
        super().__init__("the embedding of these texts was cancelled; embed them again")


def error_classes() -> dict[str, type[EmbeddingsError]]:
    """Return all kinds of errors by their code."""
    found: dict[str, type[EmbeddingsError]] = {}
    left: list[type[EmbeddingsError]] = [EmbeddingsError]
    while left:
        kind = left.pop()
        found[kind.code] = kind
        left.extend(kind.__subclasses__())
    return found


def did_you_mean(word: str, known: Iterable[str], most: int = 3) -> str:
    """Return `` (did you mean 'a' or 'b'?)`` for the nearest known words, or an empty string."""
    candidates = list(known)
    tails = {name.rsplit("/", 1)[-1].lower(): name for name in candidates} | {name.lower(): name for name in candidates}
    near = difflib.get_close_matches(word.lower(), tails, n=most, cutoff=0.5)
    names = list(dict.fromkeys(tails[match] for match in near))
    return f" (did you mean {' or '.join(repr(name) for name in names)}?)" if names else ""
