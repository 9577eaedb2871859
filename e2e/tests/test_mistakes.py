"""What people get wrong: a condition says what to do, and what is mended goes on by itself."""

from cluster.shell import wait_until
from runs import AGENT, Scene, condition_of, config_map


def test_a_missing_source_is_named_and_the_run_begins_when_it_is_there(scene: Scene) -> None:
    order = scene.order()
    source = f"{scene.name}-code"
    agent = {"source": {"configMapRef": {"name": source}}}
    run = scene.run(f"pay:{order}", agent=agent)
    found = scene.until("agentrun", run, "Accepted", "False/SourceMissing", timeout_s=30)
    assert source in found["message"]
    scene.release.apply(config_map(source, {"steps.py": AGENT.read_text()}))
    scene.made.append(("configmap", source))
    scene.completed(run)
    assert len(scene.ledger.effects_of(order)) == 1


def test_a_missing_image_is_said_in_the_kubelets_own_words(scene: Scene) -> None:
    run = scene.run(f"pay:{scene.order()}", agent={"image": "localhost/no-such-image:1"})

    def said() -> str:
        return str(condition_of(scene.get("agentrun", run), "WorkersReady").get("message", ""))

    wait_until(lambda: "no-such-image" in said(), what="the image's name", timeout_s=60)


def test_an_app_that_cannot_be_imported_is_said_with_the_import_error(scene: Scene) -> None:
    run = scene.run(f"pay:{scene.order()}", agent={"app": "nothing:app"})
    found = scene.until("agentrun", run, "WorkersReady", "False/CrashLoopBackOff", timeout_s=60)
    assert "there is no module 'nothing'" in found["message"]
