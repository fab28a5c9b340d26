"""What a version leaves in clusters and in files, written down once for each version: the object, and what it
means. For a release: python -m tests.upgrade.written_objects"""

import json
from pathlib import Path
from typing import Any

import msgspec

from karpool import __version__
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.consolidation.execution import record
from karpool.consolidation.execution.record import MovePhase
from karpool.consolidation.planning.plan_file import KIND, SavedPlan, parse_plan, to_document
from karpool.consolidation.policy.options import PlanOptions
from karpool.consolidation.policy.policy import PolicyName, PolicyOverride
from karpool.gpu.records import scale_up_object
from karpool.gpu.records.demand_key import DemandKey
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.model.karmada.binding import Binding, read_binding
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.meta import decode
from karpool.provisioning.candidates.attempts import CandidateHistory
from karpool.scheduler.promises import promise_annotation
from karpool.scheduler.promises.promise_annotation import PROMISES, RecordedPromise
from tests.consolidation.plans import plan
from tests.consolidation.test_steps_of_a_move import record_of
from tests.scheduler.acting import binding

FOLDER = Path(__file__).parent
NOW = 1_790_000_000.0
DESIRED = {"east": (3,), "west": (4,)}
Object = dict[str, Any]


def plain(value: Any) -> Any:
    """As JSON has it."""
    return json.loads(msgspec.json.encode(value, enc_hook=str))


def read_move(found: Object) -> Any:
    return plain(record.from_object(decode(found, ConfigMap)))


def read_scale_up(found: Object) -> Any:
    return plain(scale_up_object.from_object(found))


def read_saved_plan(found: Object) -> Any:
    saved = parse_plan(json.dumps(found).encode())
    return plain({"plan": saved.plan, "flags": saved.flags, "cluster": saved.cluster})


def read_promises(found: Object) -> Any:
    binding: Binding = read_binding(found)
    return plain(promise_annotation.read(binding, DESIRED, NOW, 3600.0))


READERS = {"move": read_move, "scale-up": read_scale_up, "plan": read_saved_plan, "promises": read_promises}


def objects() -> dict[str, Object]:
    """Objects with every field set, as this version writes them."""
    planned = record_of(
        nodes=2, new_nodes=1, phase=MovePhase.DELETING, created=NOW - 600, since=NOW - 60
    ).move
    moved = record_of(
        nodes=2,
        new_nodes=1,
        phase=MovePhase.DELETING,
        created=NOW - 600,
        since=NOW - 60,
        attempt=2,
        arrived=("node-9",),
        arrived_price=0.4,
        asked_at=NOW - 500,
        kept=("node-1",),
        owners={"uid-web": 3},
        disturbed=3,
        redisturbed=1,
        deleted_at=NOW - 50,
        reason="Underutilized",
        message="two nodes become one",
    )
    unit = ScaleUpUnit(
        index=1,
        gpus=1,
        cpu_milli=4000,
        memory_bytes=16 << 30,
        candidate="gpu/g6.xlarge/us-east-1a/on-demand",
        stage=ScaleUpState.PENDING,
        since=NOW - 30,
        started=NOW - 60,
        claim="gpu-x7",
        held=("default/train",),
        devices=1,
        tflops_milli=121_000,
        vram_bytes=24 << 30,
        about="g6.xlarge in us-east-1a",
    )
    asked = ScaleUpRecord(
        DemandKey("shared", "*", 1, 12, 30),
        ScaleUpState.PENDING,
        NOW - 90,
        NOW - 30,
        epoch=2,
        reason="NoRoom",
        message="no GPU has room",
        round=1,
        attempts=1,
        attempt_started=NOW - 60,
        next_attempt=NOW + 60,
        units=(unit,),
        memory={"gpu/g6.2xlarge/us-east-1a/spot": CandidateHistory(2, NOW - 20, LaunchReason.STOCK_OUT, 0)},
        bad_nodes=("broken-node",),
        waiting=1,
        demand=("default/train",),
    )
    scale_up = scale_up_object.to_object(asked, "karpool-smart-pods")
    scale_up["status"] = scale_up_object.to_status(asked)
    override = PolicyOverride(PolicyName.BALANCED, 2)
    saved = SavedPlan(plan(moves=[planned]), PlanOptions().saved(override), "prod")
    east, west = RecordedPromise((((2,), 30.0), ((1,), 5.0))), RecordedPromise((((4,), 10.0),), True)
    text = promise_annotation.write({"east": east, "west": west}, DESIRED, NOW)
    targets = [{"name": name, "replicas": amounts[0]} for name, amounts in DESIRED.items()]
    bound = binding("web", 7, clusters=targets)
    bound["metadata"]["annotations"] = {**bound["metadata"].get("annotations", {}), PROMISES: text}
    return {
        "move": record.to_object(moved, "karpool-system"),
        "scale-up": scale_up,
        "plan": plain({"apiVersion": "karpool.dev/v1alpha1", "kind": KIND, **to_document(saved)}),
        "promises": bound,
    }


def main() -> None:
    written = {name: {"object": found, "means": READERS[name](found)} for name, found in objects().items()}
    definition = scale_up_object.definition()
    content = {"objects": written, "definitions": [definition]}
    path = FOLDER / f"v{__version__}.json"
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
