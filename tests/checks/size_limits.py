"""Checks the limits that keep the code readable; prints each violation as ``file:line: message``.

    PYTHONPATH=tests python -m checks.size_limits [ROOT]

Sizes hold for the tests too, save for the number of methods; the rules on classes, state and
environment for the product only. Generated files are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from checks.classes import check_classes
from checks.environment import check_environment
from checks.sizes import check_sizes
from checks.source import Source, Violation, read_sources
from checks.state import check_state

__all__ = ["check", "main"]


def check(sources: Sequence[Source]) -> Iterator[Violation]:
    product = [source for source in sources if source.is_product]
    for source in sources:
        yield from check_sizes(source)
    for source in product:
        yield from check_environment(source)
        yield from check_state(source)
    yield from check_classes(product)


def main(arguments: Sequence[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parents[2]
    sources, unreadable = read_sources(root)
    violations = sorted([*unreadable, *check(sources)])
    for violation in violations:
        print(violation)
    print(f"size limits: {len(violations)} violations in {len(sources)} files")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
