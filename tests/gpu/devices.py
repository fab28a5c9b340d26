"""Small pools of GPUs, and requests for them."""

from hypothesis import strategies as st
from msgspec import structs

from karpool.gpu.allocation.allocator import Allocator, AllocatorSettings
from karpool.model.devices.amounts import DeviceAmount, DeviceShare
from karpool.model.devices.device import RUNNING, Device
from karpool.model.devices.request import GpuRequest

GIB = 2**30
POOL = "pool"


def gpu(name="gpu-0", node="node-0", tflops=100, vram=16, **more):
    described = {"pool": POOL, "phase": RUNNING, "model": "A100", "owner": node, **more}
    return Device(name, node=node, capacity=DeviceAmount(tflops * 1000, vram * GIB), **described)


def node(name, gpus, **more):
    return [gpu(f"{name}-{number}", name, index=number, **more) for number in range(gpus)]


def ask(uid="u", tflops=10, vram=1, **more):
    return GpuRequest(uid=uid, request=DeviceShare(tflops * 1000, vram * GIB), **{"pool": POOL, **more})


def opened(devices=(), **settings):
    allocator = Allocator(AllocatorSettings(**settings), devices)
    allocator.open()
    return allocator


names = st.sampled_from([f"node-{number}" for number in range(4)])


@st.composite
def pools(draw, max_size=12):
    """Devices of a few nodes in any state, with odd ones among them."""
    found = []
    for number in range(draw(st.integers(1, max_size))):
        host = draw(st.sampled_from(["node-0", "node-1", "node-2", ""]))
        device = gpu(
            f"gpu-{number}",
            host,
            tflops=draw(st.sampled_from([71, 100])),
            vram=draw(st.sampled_from([16, 24])),
            model=draw(st.sampled_from(["A100", "L4"])),
            vendor=draw(st.sampled_from(["NVIDIA", "NVIDIA", "AMD"])),
            phase=draw(st.sampled_from([RUNNING, RUNNING, RUNNING, "Pending", "Unknown"])),
            used_by=draw(st.sampled_from(["", "", "tensor-fusion", "nvidia-device-plugin"])),
            pool=draw(st.sampled_from([POOL, POOL, POOL, "other"])),
            index=draw(st.sampled_from([None, 0, 1, 2])),
            isolation_mode=draw(st.sampled_from(["", "soft", "hard", "shared"])),
            isolation_policy=draw(st.sampled_from(["", "Static", "Dynamic"])),
            active_isolation_mode=draw(st.sampled_from(["", "", "soft", "hard"])),
            isolation_conflict=draw(st.sampled_from([False, False, False, True])),
            capabilities=draw(
                st.sampled_from(
                    [None, None, {"SupportsHardIsolation": True}, {"SupportsSoftIsolation": True}]
                )
            ),
        )
        used = draw(st.sampled_from([0.0, 0.0, 0.3, 0.8, 1.0]))
        left = DeviceAmount(
            int(device.capacity.tflops_milli * (1 - used)), int(device.capacity.vram_bytes * (1 - used))
        )
        found.append(structs.replace(device, available=left))
    return found


@st.composite
def requests(draw, uid="u"):
    percent = draw(st.sampled_from([0, 0, 33_000, 100_000]))
    share = DeviceShare(
        0 if percent else draw(st.sampled_from([0, 1, 10_000, 60_000, 80_000])),
        draw(st.sampled_from([0, GIB, 10 * GIB, 20 * GIB])),
        percent,
        draw(st.sampled_from([0, 0, 50_000])),
    )
    return GpuRequest(
        uid=uid,
        pool=draw(st.sampled_from([POOL, POOL, POOL, "other", "none"])),
        request=share,
        limit=share,
        count=draw(st.sampled_from([1, 1, 1, 2, 3])),
        indices=draw(st.sampled_from([(), (), (0,), (0, 2)])),
        model=draw(st.sampled_from(["", "", "A100", "H100"])),
        vendor=draw(st.sampled_from(["", "", "NVIDIA", "AMD"])),
        isolation=draw(st.sampled_from(["soft", "soft", "hard", "shared"])),
    )
