"""Resolves what ``--hwq-compare`` names: one source, or a baseline of each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_hwqueue.baselines.diff import Source, load_source
from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.records.cell import Cell
from pytest_hwqueue.verdicts.judging import Judgement
from pytest_hwqueue.verdicts.unmatched import nothing_in_common


@dataclass(frozen=True)
class NamedSources:
    """The sources of runs that a name refers to.

    Attributes:
        text: as the user wrote it.
        by_device: baselines of that name, by the folder of the device's model.
        explicit: what a DEVICE/NAME or a path names; it is compared with whatever is measured.

    """

    text: str
    by_device: dict[str, Source]
    explicit: Source | None

    def of(self, device: str) -> Source | None:
        """Return what a device's runs are compared with, or None if it has nothing of this name.

        A name alone is looked up in the folder of the device measured, and nowhere else.

        Args:
            device: folder of its model, such as ``nvidia-h200``.

        """
        return self.explicit if self.explicit is not None else self.by_device.get(device)

    @property
    def sources(self) -> list[Source]:
        """All sources that may be compared with."""
        return [self.explicit] if self.explicit is not None else list(self.by_device.values())

    @property
    def label(self) -> str:
        """All of it, for people."""
        return " and ".join(source.label for source in self.sources) or self.text

    @property
    def cells(self) -> list[Cell]:
        """The cells of all sources."""
        return [cell.header.cell for source in self.sources for cell in source.cells.values()]

    def missing_for(self, devices: Sequence[str]) -> str:
        """Return text saying that devices lack a baseline of this name, and which have one.

        Args:
            devices: folders of the models measured.

        """
        text = f"there is no baseline {self.text!r} of {' or '.join(devices)}"
        others = [source.label for source in self.by_device.values()]
        if others:
            text += (
                f", only {', '.join(others)}, which is compared with another device where it is "
                "named in full"
            )
        return f"{text}; --hwq-save={self.text} stores one"


def load_named(text: str, store: Store) -> NamedSources:
    """Load what a user names; see `diff.load_source`.

    Raises:
        BaselineError: if there is no such thing, or it cannot be read.

    """
    devices = [each for each in store.devices() if text in store.names(each)]
    if devices:
        return NamedSources(
            text, {each: load_source(f"{each}/{text}", store) for each in devices}, None
        )
    return NamedSources(text, {}, load_source(text, store))


def why_unjudged(
    named: NamedSources | str,
    judgements: Sequence[Judgement],
    devices: Sequence[str],
    measured: Sequence[Cell],
) -> str:
    """Return why a comparison judged nothing.

    Args:
        named: what was to be compared with, or its name if there is nothing yet.
        judgements: the outcomes.
        devices: folders of the models measured.
        measured: the cells measured.

    """
    if not measured:
        return "no test has measured anything that can be compared"
    judged = [each for judgement in judgements for each in judgement.verdicts]
    known = [each for each in judged if each.verdict.state != "no-baseline"]
    if known:
        return "\n".join(f"{each.cell_id}: {each.verdict.sentence}" for each in known)
    if isinstance(named, str):
        return f"there is no baseline {named!r} yet"
    sources = [source for device in devices if (source := named.of(device)) is not None]
    if not sources:
        return named.missing_for(devices)
    cells = [cell.header.cell for source in sources for cell in source.cells.values()]
    return nothing_in_common(" and ".join(source.label for source in sources), cells, measured)
