"""Build the table of accelerator models that Karpool ships, from a folder of collected facts.

    python tools/build_gpu_models.py FOLDER

FOLDER holds `models.json`: one object per model with the names that labels and drivers use, its
memory, its throughput and its MIG profiles. The table keeps what decisions need, and nothing else.
"""

import json
import sys
from pathlib import Path
from typing import Any

# Usable memory of the profiles of an H200 in MiB, as its driver (580.159) reports it on the card itself.
_SEEN_ON_H200 = {"1g.35gb": 33280, "3g.71gb": 71424, "4g.71gb": 71424}

TABLE = Path(__file__).parent.parent / "src/karpool/model/devices/gpu_models.json"


def main(folder: Path) -> None:
    models = json.loads((folder / "models.json").read_text())
    lines = ",\n".join(json.dumps(_row(model), separators=(",", ":")) for model in models)
    TABLE.write_text(f"[\n{lines}\n]\n")
    sys.stdout.write(f"{TABLE.name}: {len(models)} models, {TABLE.stat().st_size} bytes\n")


def _row(model: dict[str, Any]) -> dict[str, Any]:
    tflops = model["fp16_dense_tflops"] or model["bf16_dense_tflops"]
    row = {
        "vendor": model["vendor"],
        "name": model["model"],
        "aliases": model["aliases"],
        "memory_mib": model["memory_mib"],
        "memory_also_mib": model.get("memory_mib_also_seen") or None,
        "tflops_milli": round(tflops * 1000) if tflops else None,
        "slots": model["mig_slots"],
        "profiles": [_profile(profile, model["model"]) for profile in model["mig"] or ()],
        "cores": model.get("cores_per_device"),
    }
    return {key: value for key, value in row.items() if value}


def _profile(profile: dict[str, Any], model: str) -> dict[str, Any]:
    memory = profile["memory_mib"]
    if memory is None and model.startswith("H200-"):
        memory = _SEEN_ON_H200.get(profile["profile"])
    return {
        "name": profile["profile"],
        "compute": profile["slices_compute"],
        "size": profile["size"] or 0,
        "starts": profile["placements"] or [],
        "max_instances": profile["max_instances"],
        "memory_mib": memory,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
