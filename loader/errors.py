"""Every error that this package raises on purpose, in one tree.

Each leaf is also the built-in that a caller would expect, so ``except ValueError`` works as well as
``except BadTar``. The message says what it was, what was expected and what to do next.
"""

from __future__ import annotations


class ShardflowError(Exception):
    """Root of the tree: catches everything that Shardflow raises on purpose, and nothing else."""


class BadAddress(ShardflowError, ValueError):
    """A path or URL that cannot be used here."""


class StoreError(ShardflowError, OSError):
    """A store that failed a request as often as it may be tried: names address, tries and the last cause."""


class WriteConflict(ShardflowError, FileExistsError):
    """A file that another writer has made, or changed, in between."""


class FileChanged(ShardflowError, OSError):
    """A file that was replaced while it was read."""


class BadTar(ShardflowError, ValueError):
    """A file that is no tar, or a tar that breaks the format: names shard, member and byte."""


class TruncatedTar(BadTar, EOFError):
    """A tar that ends before its last member does, or without the blocks that mark its end."""


class BadIndex(ShardflowError, ValueError):
    """A file that is no ``.index`` of ours, of an unknown version, or damaged."""


class StaleIndex(BadIndex):
    """An index that describes another state of its tar."""


class UnknownIndexVersion(BadIndex):
    """An index of a later version of the format: it is neither read nor overwritten."""


class BadSidecar(ShardflowError, ValueError):
    """A Parquet file beside a tar that can't be read, or is of an unknown version."""


class BadSample(ShardflowError, ValueError):
    """A sample whose bytes cannot be decoded: names shard, key, extension and the decoder's own reason."""


class UnsafePickle(BadSample):
    """Data that would run code when loaded, met without the caller's explicit opt-in."""


class CorruptMember(BadSample):
    """A member whose bytes don't match the CRC-32 in the index."""


class BadMeta(ShardflowError, ValueError):
    """A ``meta.json``, ``meta_stats.json`` or registry that is malformed or disagrees with its shards."""


class BadConfig(ShardflowError, ValueError):
    """A configuration that cannot be meant: names the field, its value and what is allowed."""


class NoRoom(ShardflowError, OSError):
    """A cache that is full of what is being read, or a disk that is full."""


class UnknownDataset(ShardflowError, LookupError):
    """A dataset name or pattern that matches nothing: lists the nearest names."""


class StateMismatch(ShardflowError, ValueError):
    """A checkpoint that does not fit what it is loaded into: one sentence for each reason."""


class TooManyBad(ShardflowError, RuntimeError):
    """More bad samples than the stated limit: nobody trains on nothing."""


class NotResumable(ShardflowError, AssertionError):
    """A loader that, restored from its own state, does not go on as it would have."""
