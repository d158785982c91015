"""A table of what cells take of their device's own limits, as Markdown.

    python -m tools.limits_table FOLDER

Run it from the top of the tree.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from pytest_hwqueue.data.document.document import code, plain
from pytest_hwqueue.data.metrics.numbers import percent, printed, rate_of
from pytest_hwqueue.data.records.cell import read_record
from tools.noise_table import print_table

_HEAD = ("cell", "limit", "of it [95 %]", "all of it")


def main() -> None:
    """Print the table of a folder's records, by workload."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    rows = []
    for path in sorted(parser.parse_args().folder.glob("*_cuda-*.json")):
        record = read_record(path)
        for found in record.metrics.limits:
            share = plain(str(printed(found.share, percent)))
            # Without its interval, which the share's has in it.
            whole = str(replace(rate_of(found.most), interval=""))
            rows.append([code(record.cell_id), found.limit, share, whole])
    print_table(_HEAD, rows, [])


if __name__ == "__main__":
    main()
