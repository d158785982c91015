"""Many cells, one error rate: Benjamini-Hochberg over all compared cells."""

from __future__ import annotations

from collections.abc import Mapping


def rejected(p_values: Mapping[str, float], rate: float, cells: int) -> set[str]:
    """Return the keys that Benjamini and Hochberg's procedure rejects at ``rate``.

    The k least p-values are rejected, k being the greatest rank with p <= rate k / cells
    (Benjamini & Hochberg, JRSS B 57, 1995). In an unchanged suite any alarm has a probability of at
    most ``rate``, for independent and for positively dependent cells (Benjamini & Yekutieli,
    Annals of Statistics 29, 2001).

    Args:
        p_values: one p per key.
        rate: between 0 and 1.
        cells: how many cells were compared, at least as many as ``p_values`` holds; those
            without a p there count with p = 1.

    Raises:
        ValueError: if ``cells`` is below the number of p-values.
    """
    if cells < len(p_values):
        raise ValueError(f"cells must be at least the {len(p_values)} p-values, is {cells}")
    threshold = -1.0
    for rank, p in enumerate(sorted(p_values.values()), start=1):
        if p <= rate * rank / cells:
            threshold = p
    return {key for key, p in p_values.items() if p <= threshold}
