"""Generate the protocol modules of the wire from their .proto files.

    python tools/build_wire_protocol.py [OUTPUT]

OUTPUT is the root that receives `karpool/wire/proto/*_pb2.py` and their stubs, by default `src`.
The results are checked in, so that running needs no compiler; a test compares them with a fresh run.
"""

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("karpool/wire/proto")
HEADER = '# ruff: noqa\n# fmt: off\n# mypy: disable-error-code="type-arg"\n'


def generate(output: Path) -> list[Path]:
    sources = sorted((ROOT / "src" / FOLDER).glob("*.proto"))
    command = ["protoc", f"-I{ROOT / 'src'}", f"--python_out={output}", f"--pyi_out={output}"]
    if protoc.main([*command, *map(str, sources)]):
        raise SystemExit("protoc failed; its messages are above")
    made = [output / FOLDER / f"{source.stem}_pb2{end}" for source in sources for end in (".py", ".pyi")]
    for path in made:
        path.write_text(HEADER + path.read_text())
    return made


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "src")
