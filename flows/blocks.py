"""Credentials for flows that a server runs: a Prefect block, made in its pages, whose secrets are never shown."""

from __future__ import annotations

from typing import Any, cast

from prefect.blocks.core import Block
from prefect.types import SecretDict
from pydantic import Field, SecretStr

from loader.errors import BadConfig


class StorageOptions(Block):
    """Endpoint and keys of an object store, for the field `storage_options` of a form: there goes the block's name."""

    _block_type_name = "Storage options"
    _block_type_slug = "storage-options"
    _description = (
        "Endpoint and keys of an object store, for the flows of Shardflow: they are given its name."
    )
    _documentation_url = None

    endpoint_url: str = Field("", title="Endpoint", description="Such as https://s3.example.org. Empty: AWS.")
    key: SecretStr = Field(SecretStr(""), title="Access key", description="Empty: as the environment says.")
    secret: SecretStr = Field(
        SecretStr(""), title="Secret key", description="Empty: as the environment says."
    )
    token: SecretStr = Field(SecretStr(""), title="Session token", description="Of temporary credentials.")
    anonymous: bool = Field(False, title="Anonymous", description="A public bucket, read without any key.")
    more: SecretDict = Field(
        SecretDict({}), title="More", description="Any other options of the fsspec filesystem, by name."
    )

    def options(self) -> dict[str, Any]:
        """As fsspec's filesystem takes them; only what is said."""
        said: dict[str, Any] = {
            "endpoint_url": self.endpoint_url,
            "key": self.key.get_secret_value(),
            "secret": self.secret.get_secret_value(),
            "token": self.token.get_secret_value(),
            "anon": self.anonymous,
        }
        return {**{name: value for name, value in said.items() if value}, **self.more.get_secret_value()}


def register_block() -> None:
    """Make the server offer it under Blocks."""
    StorageOptions.register_type_and_schema()


def storage_options(name: str) -> dict[str, Any] | None:
    """What the block of that name says; None for no name. BadConfig if there is none."""
    if not name:
        return None
    try:
        block = cast(StorageOptions, StorageOptions.load(name))
    except ValueError as error:
        raise BadConfig(
            f"storage_block is {name!r}, and there is no block 'Storage options' of that name: make it in Prefect's "
            "pages under Blocks, or leave the field empty"
        ) from error
    return block.options()
