"""The base of every schema: frozen data with known fields and finite numbers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class PlainData(BaseModel):
    """Data that JSON can hold: it has no infinity and no NaN, so neither has this."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
