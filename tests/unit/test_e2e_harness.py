"""The pure and unprivileged parts of the end-to-end tests' cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import binaries, images, lock, network
from cluster.faults import pids
from cluster.node import kill_marked, marked_processes
from cluster.paths import E2E, MARKER
from cluster.pki import Authority
from cluster.shell import ClusterError, wait_until


def test_a_program_is_built_again_only_when_what_it_is_made_of_has_changed(tmp_path: Path) -> None:
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / "go.mod").write_text("module thing\n")
    sums = tmp_path / "thing" / "go.sum"
    sums.write_text("one\n")
    wanted = binaries.Module("thing", {"thing": "."}, folder=tmp_path)
    first = binaries.key(wanted)
    assert binaries.key(wanted) == first
    sums.write_text("two\n")
    assert binaries.key(wanted) != first
    flagged = binaries.Module("thing", {"thing": "."}, "-X a=b", folder=tmp_path)
    assert binaries.key(flagged) != binaries.key(wanted)


def test_who_built_the_same_program_meanwhile_wins_and_nothing_half_done_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "thing"
    source.mkdir()
    (source / "go.mod").write_text("module thing\n")
    wanted = binaries.Module("thing", {"thing": "."}, folder=tmp_path)
    cache = tmp_path / "cache"
    made = cache / "bin" / f"thing-{binaries.key(wanted)}"

    def build(words: list[str], **_: object) -> None:
        made.mkdir()  # the other one is faster
        (made / "thing").write_text("theirs")
        Path(words[words.index("-o") + 1]).write_text("ours")

    monkeypatch.setattr(binaries, "cache_dir", lambda: cache)
    monkeypatch.setattr(binaries, "ensure_go", lambda: None)
    monkeypatch.setattr(binaries, "run", build)
    assert binaries.build(wanted) == made
    assert (made / "thing").read_text() == "theirs"
    assert [each.name for each in made.parent.iterdir()] == [made.name]


def test_every_go_module_pins_its_sources_and_names_no_host_to_fetch_them_from() -> None:
    for each in binaries.MODULES:
        content = (each.source / "go.mod").read_text()
        assert "://" not in content
        if "require" in content:
            assert (each.source / "go.sum").read_text().strip()


def test_the_kubernetes_module_pins_each_staging_module_to_the_same_release() -> None:
    lines = (binaries.module("kubernetes").source / "go.mod").read_text().splitlines()
    replaced = [line.split() for line in lines if " => " in line]
    minor = "v0." + binaries.KUBERNETES.split(".", 1)[1]
    assert len(replaced) > 30
    assert all(words[0] == words[2] and words[3] == minor for words in replaced)


def test_a_route_of_the_host_that_overlaps_the_clusters_ranges_is_named() -> None:
    free = [{"dst": "default"}, {"dst": "192.168.1.0/24", "dev": "eth0"}]
    assert network.clashes(free) == []
    assert network.clashes([*free, {"dst": "10.96.7.0/24", "dev": "tun0"}]) == ["10.96.7.0/24"]
    assert network.clashes([{"dst": "10.244.0.0/24", "dev": network.BRIDGE}]) == []


def test_the_mirror_is_the_first_source_of_the_suite_with_all_its_components() -> None:
    rows = ["noble|main|http://one/ubuntu/", "noble|universe|http://one/ubuntu/"]
    rows += ["noble-security|main|http://two/ubuntu/"]
    listed = "\n".join(rows)
    assert images.mirror(listed, "noble") == ("http://one/ubuntu/", ["main", "universe"])
    with pytest.raises(ClusterError, match="apt-get update"):
        images.mirror(listed, "jammy")


def test_process_numbers_are_read_from_the_table_of_a_container() -> None:
    assert pids("PID    INFO\n104    -\n2001   -\n") == [104, 2001]


def test_a_process_of_the_cluster_is_found_without_a_pid_file_and_others_are_left_alone(
    tmp_path: Path,
) -> None:
    ours = sleeper(str(tmp_path))
    others = sleeper(f"{tmp_path}-2")
    try:
        for process in (ours, others):
            assert process.stdout is not None
            process.stdout.readline()
        assert list(marked_processes(tmp_path)) == [ours.pid]
        kill_marked(tmp_path)
        assert ours.wait(timeout=10) < 0
        assert others.poll() is None
    finally:
        for process in (ours, others):
            process.kill()
            process.communicate(timeout=10)


def test_a_second_run_is_told_which_process_holds_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AAA_E2E_CACHE", str(tmp_path))
    with lock.locked("cluster", timeout_s=0):
        asked = "from cluster.lock import locked\nwith locked('cluster', timeout_s=0): pass"
        env = os.environ | {"PYTHONPATH": str(E2E)}
        argv = [sys.executable, "-c", asked]
        second = subprocess.run(
            argv, check=False, env=env, capture_output=True, text=True, timeout=30
        )
        assert second.returncode != 0
        assert f"process {os.getpid()}" in second.stderr
    with lock.locked("cluster", timeout_s=0):
        pass


def test_waiting_in_vain_says_for_what_and_gives_the_last_reason() -> None:
    def fails() -> bool:
        raise ClusterError("the port is closed")

    with pytest.raises(ClusterError, match=r"the server: not within 0 s: the port is closed"):
        wait_until(fails, what="the server", timeout_s=0)


def test_a_certificate_names_its_person_group_and_addresses(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.create()
    names = ["kubernetes.default", "10.96.0.1"]
    certificate, _ = authority.sign("x", person="ann", group="team", addresses=names)
    shown = subprocess.run(
        ["openssl", "x509", "-in", certificate, "-noout", "-text"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    assert "O = team, CN = ann" in shown
    assert "DNS:kubernetes.default, IP Address:10.96.0.1" in shown
    assert "CA:TRUE" not in shown


def sleeper(state: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env=os.environ | {MARKER: state},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
