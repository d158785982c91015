"""Fields that records of cells and of co-locations share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

# Which code was measured, and by which; see `records.provenance`.
Version = Annotated[
    str | None,
    Field(description="pytest-hwqueue's; null in a record of a version that did not note it"),
]
GitCommit = Annotated[
    str | None,
    Field(
        description="checked out in the tree under test; null where that is no git repository and "
        "--hwq-commit does not state it; `missing` in the fingerprint has the reason"
    ),
]
GitDirty = Annotated[
    bool | None,
    Field(
        description="whether tracked files differed from that commit; null where it is not known"
    ),
]
