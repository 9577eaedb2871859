"""Breaks each guarantee on purpose, in a copy of the product, and demands that its tests notice.

``make mutants``, or ``python tests/mutants/run.py [G4 L8 …]`` for some of them. Each file in
``patches/`` names one statement of docs/guarantees.md and replaces one piece of text in one file.
The tests that are marked with that statement run against the copy; at least one of them must fail
by an assertion, not because something could not be imported or took too long. A statement without
a patch or without a test is an error, and so is a patch whose text is not found exactly once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).resolve().parent / "patches"
TESTS = ("tests/conformance/test_conformance.py", "tests/guarantees")
PROCESSES = 2
LIMIT_S = 150.0
#: What a wait that was in vain costs here: the tests' own bound is longer.
PATIENCE_S = "4"
SURVIVED = "no test fails"
_ID = re.compile(r"^\*\*([LG]\d+)\b", re.M)
_SPEC = re.compile(
    r"id: (?P<id>\S+)\nsays: (?P<says>.+)\nfile: (?P<file>\S+)\n"
    r"--- find\n(?P<find>.*?)\n--- replace\n(?P<replace>.*?)\n?--- end\n",
    re.S,
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One statement, broken in one place."""

    name: str
    id: str
    says: str
    file: str
    find: str
    replace: str

    def apply(self, runtime: Path) -> None:
        """Break the copy. Raises ``ValueError`` if the text is not there exactly once."""
        path = runtime.parent / self.file
        text = path.read_text()
        found = text.count(self.find)
        if found != 1:
            raise ValueError(f"its text is found {found} times in {self.file}; mend the patch")
        path.write_text(text.replace(self.find, self.replace))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the tests noticed; ``witness`` is the test that did, or what went wrong."""

    mutant: Mutant
    noticed: bool
    witness: str
    took_s: float


def main(wanted: list[str]) -> int:
    documented = _ID.findall((ROOT / "docs/guarantees.md").read_text())
    mutants = [_read(path) for path in sorted(PATCHES.glob("*.txt"))]
    problems = _uncovered(documented, mutants) if not wanted else []
    chosen = [each for each in mutants if not wanted or each.id in wanted]
    with ThreadPoolExecutor(PROCESSES) as pool:
        verdicts = []
        for verdict in pool.map(_judge, chosen):
            verdicts.append(verdict)
            word = "noticed" if verdict.noticed else "NOT NOTICED"
            print(
                f"{verdict.mutant.name:<36} {word:<12} {verdict.took_s:5.1f} s  {verdict.witness}"
            )
            sys.stdout.flush()
    problems += [
        f"{each.mutant.id}: if {each.mutant.says}, {each.witness}"
        for each in verdicts
        if not each.noticed
    ]
    for problem in problems:
        print(f"mutants: {problem}", file=sys.stderr)
    print(f"{sum(each.noticed for each in verdicts)} of {len(verdicts)} mutants noticed")
    return 1 if problems else 0


def _read(path: Path) -> Mutant:
    match = _SPEC.fullmatch(path.read_text())
    if match is None:
        raise SystemExit(f"mutants: {path.name} is not written as the others are")
    return Mutant(path.stem, **match.groupdict())


def _uncovered(documented: list[str], mutants: list[Mutant]) -> list[str]:
    broken = {mutant.id for mutant in mutants}
    listed = _pytest(ROOT / "runtime", ["--collect-only", "--list-guarantees"], limit_s=LIMIT_S)
    tested = set(re.findall(r"^guarantee (\S+)", listed.stdout, re.M))
    problems = [f"{id_} has no test" for id_ in documented if id_ not in tested]
    problems += [f"{id_} has no patch" for id_ in documented if id_ not in broken]
    unknown = sorted((broken | tested) - set(documented))
    problems += [f"{id_} is not in docs/guarantees.md" for id_ in unknown]
    return problems if documented else ["docs/guarantees.md lists no statement"]


def _judge(mutant: Mutant) -> Verdict:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aaa-mutant-") as folder:
        runtime = Path(folder) / "runtime"
        shutil.copytree(ROOT / "runtime", runtime, ignore=shutil.ignore_patterns("__pycache__"))
        report = Path(folder) / "report.xml"
        try:
            mutant.apply(runtime)
            noticed, witness = False, ""
            for most in ("1", "20"):  # mostly the first failure is the one that counts
                arguments = ["--guarantee", mutant.id, f"--maxfail={most}", f"--junitxml={report}"]
                _pytest(runtime, arguments, limit_s=LIMIT_S)
                noticed, witness = _witness(report)
                if noticed or witness == SURVIVED:
                    break
        except ValueError as error:
            noticed, witness = False, str(error)
        except subprocess.TimeoutExpired:
            noticed, witness = False, f"its tests took more than {LIMIT_S:g} s"
    return Verdict(mutant, noticed, witness, time.monotonic() - began)


def _witness(report: Path) -> tuple[bool, str]:
    """The first test that failed by an assertion."""
    if not report.exists():
        return False, "its tests could not be run"
    other = SURVIVED
    for case in ET.parse(report).getroot().iter("testcase"):
        for failure in case.findall("failure"):
            message = failure.get("message", "")
            asserted = message.startswith(("AssertionError", "assert ", "Failed: DID NOT RAISE"))
            if asserted:
                return True, f"{case.get('name')}"
            other = f"{case.get('name')} fails otherwise: {message[:80]}"
        for error in case.findall("error"):
            other = f"{case.get('name')}: {error.get('message', '')[:80]}"
    return False, other


def _pytest(
    runtime: Path, arguments: list[str], *, limit_s: float
) -> subprocess.CompletedProcess[str]:
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"),
        *(
            "-p",
            "pytest_asyncio.plugin",
            "-p",
            "pytest_timeout",
            "-o",
            f"pythonpath={runtime} {ROOT / 'tests'}",
            "--timeout=60",
        ),
        *(arguments + list(TESTS)),
    ]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ
        | {
            "PYTHONPATH": str(runtime),
            "AAA_TEST_PATIENCE_S": PATIENCE_S,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # half of a short run's time
        },
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
