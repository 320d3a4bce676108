"""What a store fails is tried again, after longer and longer waits of random length, up to a stated limit.

Some failures are answers, and final: there is no such file, it is not allowed, the request makes no sense.
Credentials that have expired are looked up anew, once. All else is taken for a bad moment: throttling, errors of the
server's own, connections that can't be made or break, time-outs, bodies that end early.
"""

from __future__ import annotations

import errno
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from loader import stores
from loader.errors import ShardflowError, StoreError
from loader.stores import StorageOptions

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_WAIT = 0.1  # seconds; doubled each time, and up to as much again by chance
_LONGEST_WAIT = 10.0
_ANSWERS = (FileNotFoundError, PermissionError, FileExistsError, IsADirectoryError, NotADirectoryError)
_FINAL_ERRNOS = {
    errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EEXIST, errno.ENOSPC, errno.EROFS, errno.EDQUOT,
    errno.ENAMETOOLONG, errno.ENOSYS, errno.EMFILE, errno.ENFILE, errno.EMSGSIZE, errno.ENOTEMPTY, errno.EREMCHG,
}  # fmt: skip
# Of clients that have trees of their own for errors. Importing them, to ask by type, would be all but free of cost.
_CLIENTS = {
    "botocore",
    "aiobotocore",
    "aiohttp",
    "obstore",
    "azure",
    "google",
    "gcsfs",
    "requests",
    "urllib3",
    "fsspec",
}
_FINAL_NAMES = {
    "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ParamValidationError", "NotSupportedError",
    "InvalidPathError", "UnknownConfigurationKeyError", "NoRegionError", "InvalidURL", "DefaultCredentialsError",
}  # fmt: skip
_NO_ACCESS = {
    "NoCredentialsError", "PartialCredentialsError", "PermissionDeniedError", "UnauthenticatedError", "ProfileNotFound",
    "DefaultCredentialsError",
}  # fmt: skip
_REFUSED = {"PreconditionError", "AlreadyExistsError", "ResourceExistsError"}
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_PASSING_STATUSES = (408, 409, 425, 429)
_STATUS = re.compile(r"status code: (\d\d\d)")
_EXPIRED = re.compile(
    r"Expired ?Token|TokenRefreshRequired|RequestExpired|token (has|is|included in the request is) expired"
)


def expired(error: BaseException) -> bool:
    """Whether a store says that the credentials are too old."""
    text = " ".join(f"{type(each).__name__} {each}" for each in _chain(error))
    # What answers a HEAD has no body to say so.
    return bool(_EXPIRED.search(text)) or "(400) when calling the Head" in text


def passing(error: BaseException) -> bool:
    """Whether the same request may well succeed a moment later."""
    if isinstance(error, (*_ANSWERS, ShardflowError)):
        return isinstance(error, ShortBody)
    if isinstance(error, (TimeoutError, ConnectionError)):
        return True
    name = type(error).__name__
    if name in _FINAL_NAMES or name in _NO_ACCESS or refused(error):
        return False
    if any(400 <= _status(each) < 500 and _status(each) not in _PASSING_STATUSES for each in _chain(error)):
        return False
    if isinstance(error, OSError):
        return error.errno not in _FINAL_ERRNOS
    return _of_client(error) or name == "TimeoutError"  # asyncio's was another class before Python 3.11


def no_access(error: BaseException) -> bool:
    """Whether a store, or its client, finds that one may not, or can't say who one is."""
    return isinstance(error, PermissionError) or type(error).__name__ in _NO_ACCESS


def refused(error: BaseException) -> bool:
    """Whether a store says that a condition of the request does not hold: there is a file, or another version of it."""
    for each in _chain(error):
        if isinstance(each, FileExistsError) or type(each).__name__ in _REFUSED:
            return True
        if _given_code(each) in ("PreconditionFailed", "412", "ConditionalRequestConflict"):
            return True
        if _status(each) == 412:
            return True
    return False


class ShortBody(ShardflowError, EOFError):
    """A body that ended before it had the bytes that were asked for, of a file that has them."""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def call(
    what: str,
    address: str,
    storage_options: StorageOptions | None,
    function: Callable[[], T],
    renew: Callable[[], None],
) -> T:
    """What `function` returns, tried as often as the options allow.

    `what` is done to `address` ("read"); `renew` looks up credentials anew. StoreError names address, tries
    and the last cause; FileNotFoundError, PermissionError and other answers come as they are, with the address.
    """
    began = time.monotonic()
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told or raised below
        return _again(what, address, storage_options, function, renew, error, began)


def _again(
    what: str,
    address: str,
    storage_options: StorageOptions | None,
    function: Callable[[], T],
    renew: Callable[[], None],
    first: Exception,
    began: float,
) -> T:
    """The same after a first try that ended in `first`."""
    import tenacity

    limits = stores.policy(storage_options)
    tries, renewed = 0, False

    def once() -> T:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise first
        return function()

    def again(error: BaseException) -> bool:
        nonlocal renewed
        if expired(error) and not renewed:
            renewed = True
            renew()
            return True
        return passing(error)

    def tell(state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None and state.next_action is not None
        logger.info(
            "%s: %s failed (%s); tried again in %.1f s",
            address,
            what,
            cause(state.outcome.exception()),
            state.next_action.sleep,
        )

    try:
        return tenacity.Retrying(
            stop=tenacity.stop_after_attempt(limits.max_tries)
            | tenacity.stop_after_delay(limits.max_seconds),
            wait=tenacity.wait_exponential(_FIRST_WAIT, max=_LONGEST_WAIT)
            + tenacity.wait_random_exponential(_FIRST_WAIT, max=_LONGEST_WAIT),
            retry=tenacity.retry_if_exception(again),
            before_sleep=tell,
            reraise=True,
        )(once)
    except Exception as error:
        told = failure(what, address, error, tries, time.monotonic() - began)
        if told is error:
            raise
        raise told from error


def failure(what: str, address: str, error: Exception, tries: int, seconds: float) -> Exception:
    """The error to raise for one that is final, or came once too often."""
    if expired(error):
        return PermissionError(
            f"{address}: {what} failed: the credentials have expired, and looking them up again gave no better "
            f"ones ({cause(error)})"
        )
    if no_access(error) and not isinstance(error, PermissionError):
        return PermissionError(
            f"{address}: {what} failed: {cause(error)}. Say who you are (key and secret, or profile), or "
            "anon=True, in storage_options"
        )
    if passing(error):
        return StoreError(
            f"{address}: {what} failed {tries} time{'s' if tries > 1 else ''} in {seconds:.1f} s, the last time by "
            f"{cause(error)}. Is the store well, and its endpoint right? max_tries and max_seconds in "
            "storage_options say how long to go on"
        )
    for kind in _ANSWERS:
        if isinstance(error, kind):
            return kind(f"{address}: {_text(error)}")
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ShardflowError):
        return OSError(error.errno, f"{address}: {what} failed: {_text(error)}")
    if _of_client(error) or (
        isinstance(error, RuntimeError) and error.__cause__ and _of_client(error.__cause__)
    ):
        return StoreError(f"{address}: {what} failed: {cause(error)}")
    return error


def _status(error: BaseException) -> int:
    """The HTTP status that came, where a client tells it; else 0."""
    root = type(error).__module__.partition(".")[0]
    if root in ("azure", "gcsfs", "google"):
        found = getattr(error, "status_code", None) or getattr(error, "code", None)
        return found if isinstance(found, int) else 0
    if root == "obstore":
        told = _STATUS.search(str(error))
        return int(told.group(1)) if told else 0
    answer = getattr(error, "response", None)
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) if isinstance(answer, dict) else 0


def _of_client(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _CLIENTS


def cause(error: BaseException | None) -> str:
    """An error in a few words, on one line: its kind, the code that the store gave, and what it says."""
    kind = type(error).__name__
    text, code = _text(error), _code(error)
    if code and code not in text:
        text = f"{code}: {text}"
    return f"{kind}: {text}" if text else kind


def _code(error: BaseException | None) -> str:
    """What S3 calls the error."""
    for each in _chain(error):
        if given := _given_code(each):
            return given
        if named := _CODE.search(str(each)):
            return named.group(1)
    return ""


def _given_code(error: BaseException) -> str:
    """The code in botocore's answer."""
    answer = getattr(error, "response", None)  # other clients have other things of that name
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def _text(error: Any) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # obstore's go on with the whole answer, and then with how they are made.
    text = re.split(r":? *<\?xml|\n\n", str(text), maxsplit=1)[0]
    return " ".join(text.split())[:300]
