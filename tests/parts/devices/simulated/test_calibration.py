"""The simulated H200 against the measured one, exactly as docs/evidence/simulated.md has it."""

from __future__ import annotations

import pytest
import torch

from .against_measured import PAGE, ROOT, compare, markdown
from .calibration import calibration, table

_PAGE = PAGE.read_text(encoding="utf-8")


def test_the_page_has_the_models_figures_and_few_are_off() -> None:
    rows = list(calibration())
    assert table(rows) in _PAGE
    assert table(rows).count("off by more than 2×") <= 1
    ratios = {row.what: row.ratio for row in rows}
    # What the profile was made from comes back.
    for figure, tolerance in (
        ("launch of a small kernel", 0.01), ("event record", 0.01),
        ("from ready to start, on 1 stream", 0.01), ("convoy, tiny kernel of equal priority", 0.1),
        ("matrix product of 8192, bf16", 0.1),
    ):  # fmt: skip
        assert ratios[figure] == pytest.approx(1, abs=tolerance), figure


@pytest.mark.skipif(
    (ROOT / "PKG-INFO").exists(), reason="a source distribution has only the reference baselines"
)
def test_a_model_alone_is_predicted_under_each_scheduler() -> None:
    precision = torch.get_float32_matmul_precision()
    found = compare(["solo"])
    # The model sets for its process that products may use TF32.
    torch.set_float32_matmul_precision(precision)
    rows = [line for line in markdown(found).splitlines() if line.startswith("| solo | ")]
    assert len(rows) == len(found.rows) > 0
    assert set(rows) <= set(_PAGE.splitlines())
    near = {row.case for row in found.rows if row.figure == "P50" and row.near and not row.fitted}
    assert near >= {"mps", "mps-priority", "threads-stream-priority", "xsched:level=1,threshold=4"}
    assert not any(verdict.flipped for verdict in found.verdicts)
    assert "solo xsched:level=3" in found.not_modelled


@pytest.mark.slow
def test_the_page_has_what_the_tool_says() -> None:
    found = compare()
    assert markdown(found) in _PAGE
    assert not [verdict for verdict in found.verdicts if verdict.flipped]
