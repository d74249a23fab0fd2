"""What the machine has: each situation is a folder of fake devices, libraries and packages, or a fake TensorFlow."""

from __future__ import annotations

import subprocess
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lstm_swap.device import DeviceReport, Finding, Machine, doctor_text, gpu_present, tensorflow_report

CUDA_BUILD = "('cuda_version', '12.5.1'), ('cudnn_version', '9'), ('is_cuda_build', True), ('is_rocm_build', False)"
CPU_BUILD = "('is_cuda_build', False), ('is_rocm_build', False)"
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\nGCC version: gcc 12.2.0\n"


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def tensorflow_of(site: Path, build: str) -> None:
    module = site / "tensorflow/python/platform/build_info.py"
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text(f'"""Generated."""\nimport collections\n\nbuild_info = collections.OrderedDict([{build}])\n')


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine where everything is as it should be: two GPUs, driver, TensorFlow with CUDA, cuDNN from pip."""
    root, site = tmp_path / "root", tmp_path / "site"
    touch(*(root / "dev" / name for name in ("nvidia0", "nvidia1", "nvidiactl", "null")))
    touch(root / "usr/lib/x86_64-linux-gnu/libcuda.so.1", site / "nvidia/cudnn/lib/libcudnn.so.9")
    touch(root / "proc/driver/nvidia/version")
    (root / "proc/driver/nvidia/version").write_text(DRIVER)
    tensorflow_of(site, CUDA_BUILD)
    return Machine(root=root, environ={}, site_folders=[site], platform="linux")


def changed(machine: Machine, **fields: Any) -> Machine:
    return Machine(**{**vars(machine), **fields})


def failed(report: DeviceReport) -> list[str]:
    return [finding.check for finding in report.reasons if not finding.ok]


def test_all_is_well(machine: Machine) -> None:
    """GPU, driver, CUDA build and cuDNN are all found and named."""
    report = gpu_present(machine)
    assert (report.present, report.state, report.remedy) == (True, "ready", "")
    assert [finding.check for finding in report.reasons] == ["device", "visible", "driver", "tensorflow", "cudnn"]
    text = doctor_text(report)
    for said in ("/dev/nvidia0, /dev/nvidia1", "580.159.03", "CUDA 12.5.1", "libcudnn.so.9", "ready"):
        assert said in text


def _no_device(machine: Machine) -> None:
    for name in ("nvidia0", "nvidia1"):
        (machine.root / "dev" / name).unlink()


def _no_driver(machine: Machine) -> None:
    (machine.root / "usr/lib/x86_64-linux-gnu/libcuda.so.1").unlink()


def _no_cudnn(machine: Machine) -> None:
    (machine.site_folders[0] / "nvidia/cudnn/lib/libcudnn.so.9").unlink()


def _old_cudnn(machine: Machine) -> None:
    _no_cudnn(machine)
    touch(machine.site_folders[0] / "nvidia/cudnn/lib/libcudnn.so.8")


def _cpu_build(machine: Machine) -> None:
    tensorflow_of(machine.site_folders[0], CPU_BUILD)


def _no_tensorflow(machine: Machine) -> None:
    (machine.site_folders[0] / "tensorflow/python/platform/build_info.py").unlink()


def _directml(machine: Machine) -> None:
    _cpu_build(machine)
    (machine.site_folders[0] / "tensorflow_directml_plugin-0.4.dist-info").mkdir()


def _rocm(machine: Machine) -> None:
    tensorflow_of(machine.site_folders[0], "('is_cuda_build', False), ('is_rocm_build', True)")


@pytest.mark.parametrize(
    ("change", "check", "state", "said", "remedy"),
    [
        (_no_device, "device", "absent", "no NVIDIA GPU", "nvidia-smi"),
        (_no_driver, "driver", "broken", "libcuda.so.1", "Install the NVIDIA driver"),
        (_no_cudnn, "cudnn", "broken", "cuDNN 9", 'pip install "tensorflow[and-cuda]"'),
        (_old_cudnn, "cudnn", "broken", "found libcudnn.so.8", 'pip install "tensorflow[and-cuda]"'),
        (_cpu_build, "tensorflow", "broken", "without CUDA", "pip uninstall tensorflow-cpu"),
        (_no_tensorflow, "tensorflow", "broken", "not installed", "pip install"),
        (_directml, "tensorflow", "broken", "DirectML", "NVIDIA"),
        (_rocm, "tensorflow", "broken", "ROCm", "NVIDIA"),
    ],
)
def test_one_thing_is_missing(
    machine: Machine, change: Callable[[Machine], None], check: str, state: str, said: str, remedy: str
) -> None:
    """Each missing part is named, classed and given its remedy; the others stay as they were."""
    change(machine)
    report = gpu_present(machine)
    assert not report.present
    assert failed(report) == [check]
    assert report.state == state
    assert remedy in report.remedy
    text = doctor_text(report)
    assert said in text
    assert report.remedy in text
    assert ("CUDA is broken" in text) is (state == "broken")


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        (None, True),
        ("0", True),
        ("1,0", True),
        ("0,-1", True),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", True),
        ("MIG-GPU-1/0/0", True),
        ("", False),
        ("-1", False),
        ("-1,0", False),
        ("NoDevFiles", False),
        ("2", False),  # there are two, 0 and 1
        (" ", False),
    ],
)
def test_environment_may_hide_the_gpu(machine: Machine, value: str | None, visible: bool) -> None:
    """CUDA_VISIBLE_DEVICES is read as CUDA reads it: up to the first entry that names no GPU."""
    report = gpu_present(changed(machine, environ={} if value is None else {"CUDA_VISIBLE_DEVICES": value}))
    assert report.present is visible
    assert report.state == ("ready" if visible else "hidden")
    if not visible:
        assert "CUDA_VISIBLE_DEVICES=0" in report.remedy


@pytest.mark.parametrize("place", ["LD_LIBRARY_PATH", "cache", "usr/lib64"])
def test_libraries_on_the_linkers_path(machine: Machine, tmp_path: Path, place: str) -> None:
    """Driver and cuDNN count wherever the dynamic linker would find them."""
    _no_driver(machine)
    _no_cudnn(machine)
    names = ("libcuda.so.1", "libcudnn.so.9")
    if place == "LD_LIBRARY_PATH":
        touch(*(tmp_path / "own" / name for name in names))
        machine = changed(machine, environ={place: f"/nowhere::{tmp_path / 'own'}"})
    elif place == "cache":
        touch(machine.root / "etc/ld.so.cache")
        (machine.root / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\0" + "\0".join(names).encode() + b"\0")
    else:
        touch(*(machine.root / place / name for name in names))
    assert gpu_present(machine).present
    if place == "cache":  # libcudnn.so.90 is another library
        (machine.root / "etc/ld.so.cache").write_bytes(b"libcuda.so.1\0libcudnn.so.90\0")
        assert failed(gpu_present(machine)) == ["cudnn"]


@pytest.mark.parametrize("device", ["proc/driver/nvidia/gpus/0000:01:00.0", "dev/nvhost-gpu", "dev/dxg"])
def test_other_signs_of_a_gpu(machine: Machine, device: str) -> None:
    """A GPU that only the driver shows, a Jetson board, NVIDIA under WSL 2 (not another WSL GPU) count."""
    _no_device(machine)
    touch(machine.root / device)
    if device == "dev/dxg":
        assert gpu_present(machine).state == "absent"
        touch(machine.root / "usr/lib/wsl/lib/libcuda.so.1")
    assert gpu_present(machine).present


def test_systems_without_cuda(machine: Machine) -> None:
    """macOS and native Windows have no CUDA TensorFlow; Windows is sent to WSL."""
    assert gpu_present(changed(machine, platform="darwin")).state == "absent"
    assert "WSL" in gpu_present(changed(machine, platform="win32")).remedy


@pytest.mark.parametrize("text", ["syntax error(", "build_info = {'is_cuda_build': True}", "build_info = f()", "x = 1"])
def test_build_info_of_other_shapes(machine: Machine, text: str) -> None:
    """A build_info.py that is a dict is read; one that cannot be read is no CUDA build, and no exception."""
    (machine.site_folders[0] / "tensorflow/python/platform/build_info.py").write_text(text)
    assert gpu_present(machine).present is ("True" in text)


def test_is_fast_and_imports_nothing() -> None:
    """Looking at this machine imports no TensorFlow and takes well under 50 ms."""
    code = (
        "import sys, timeit, lstm_swap.device as device\n"
        "seconds = min(timeit.repeat(device.gpu_present, number=1, repeat=5))\n"
        "print(seconds, device.gpu_present().state, sorted({'tensorflow', 'keras'} & set(sys.modules)))"
    )
    seconds, state, imported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert float(seconds) < 0.05
    assert state in ("ready", "absent", "hidden", "broken")
    assert imported == "[]"


def test_many_site_folders_cost_little(machine: Machine, tmp_path: Path) -> None:
    """A long sys.path with a thousand packages is still looked through in time."""
    crowded = tmp_path / "crowded"
    for number in range(1000):
        (crowded / f"package{number}-1.0.dist-info").mkdir(parents=True)
    machine = changed(machine, site_folders=[tmp_path / "none", crowded, *machine.site_folders])
    assert gpu_present(machine).present
    assert min(timeit.repeat(lambda: gpu_present(machine), number=1, repeat=5)) < 0.05


class Driver:
    """libcuda and libcudnn as ctypes shows them."""

    def __init__(self, code: int = 0, count: int = 1) -> None:
        self.code, self.count = code, count
        self.cudnnGetVersion = _Function(91900)

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return self.code

    def cuDeviceGetCount(self, pointer: Any) -> int:
        pointer._obj.value = self.count
        return 0


class _Function:
    restype: Any = None

    def __init__(self, result: int) -> None:
        self.result = result

    def __call__(self) -> int:
        return self.result


def tensorflow(gpus: int, cuda: bool = True, hidden: bool = False) -> Any:
    """A TensorFlow that lists so many GPUs."""
    listed = [SimpleNamespace(name=f"/physical_device:GPU:{number}") for number in range(gpus)]
    build = {"is_cuda_build": cuda, "cuda_version": "12.5.1", "cudnn_version": "9"}
    return SimpleNamespace(
        sysconfig=SimpleNamespace(get_build_info=lambda: build),
        config=SimpleNamespace(
            list_physical_devices=lambda kind: listed,
            get_visible_devices=lambda kind: [] if hidden else listed,
        ),
    )


def loader(driver: Driver, *missing: str) -> Callable[[str], Any]:
    def load(name: str) -> Any:
        if any(part in name for part in missing):
            raise OSError(f"{name}: cannot open shared object file")
        return driver

    return load


@pytest.mark.parametrize(
    ("module", "load", "environ", "state", "said"),
    [
        (tensorflow(1), loader(Driver()), {}, "ready", "cuDNN 91900"),
        (tensorflow(2, hidden=True), loader(Driver()), {}, "hidden", "set_visible_devices"),
        (tensorflow(0), loader(Driver(), "libcuda"), {}, "absent", "no NVIDIA driver"),
        (tensorflow(0), loader(Driver(100)), {}, "absent", "CUDA_ERROR_NO_DEVICE"),
        (tensorflow(0), loader(Driver(803)), {}, "broken", "differ in version"),
        (tensorflow(0), loader(Driver(12345)), {}, "broken", "12345"),
        (tensorflow(0), loader(Driver()), {"CUDA_VISIBLE_DEVICES": ""}, "hidden", "hides every GPU"),
        (tensorflow(0), loader(Driver(), "cudnn"), {}, "broken", "cuDNN 9 cannot be opened"),
        (tensorflow(0), loader(Driver()), {}, "broken", "another CUDA library"),
        (tensorflow(1, cuda=False), loader(Driver()), {}, "broken", "without CUDA"),
    ],
)
def test_what_tensorflow_tells(
    module: Any, load: Callable[[str], Any], environ: dict[str, str], state: str, said: str
) -> None:
    """Each answer of TensorFlow, the driver and cuDNN leads to its own finding."""
    report = tensorflow_report(module, environ=environ, load=load)
    assert report.state == state
    assert report.present is (state == "ready")
    assert any(said in finding.message for finding in report.reasons)


def test_tensorflow_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TensorFlow the report says so."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    report = tensorflow_report()
    assert failed(report) == ["tensorflow"]
    assert "cannot be imported" in report.reasons[0].message


def _report(source: str, check: str | None, remedy: str = "") -> DeviceReport:
    checks = ("device", "visible", "driver", "tensorflow", "cudnn")
    return DeviceReport(
        source, tuple(Finding(name, name != check, f"{name} of {source}", remedy * (name == check)) for name in checks)
    )


@pytest.mark.parametrize(
    ("files", "live", "verdict", "remedy"),
    [
        (None, None, "is ready", ""),
        ("device", None, "is ready", ""),  # files may miss a GPU that works
        (None, "cudnn", "CUDA is broken", "live"),
        (None, "device", "CUDA is broken", "live"),  # files see the GPU that TensorFlow cannot reach
        (None, "visible", "may not see it", "live"),
        ("device", "tensorflow", "No GPU with cuDNN", "files"),
        ("driver", "device", "CUDA is broken", "files"),
        ("visible", "device", "may not see it", "files"),
    ],
)
def test_conclusion_from_both(files: str | None, live: str | None, verdict: str, remedy: str) -> None:
    """Files know whether a GPU is there, TensorFlow whether it works."""
    text = doctor_text(_report("files", files, "Do files."), _report("tensorflow", live, "Do live."))
    assert verdict in text
    assert [word for word in ("files", "live") if f"Remedy: Do {word}." in text] == ([remedy] if remedy else [])


def test_model_that_cannot_use_cudnn_is_not_a_broken_gpu(machine: Machine) -> None:
    """Refused layers are told apart from the state of the machine."""
    refused = [("encoder/lstm_1", "activation is relu"), ("gru", "reset_after is False")]
    text = doctor_text(gpu_present(machine), refused=refused)
    assert "A GPU with cuDNN is ready" in text
    assert "These layers of your model cannot use cuDNN, on any GPU:\n  encoder/lstm_1: activation is relu" in text
    assert "broken" not in text
    _no_driver(machine)
    text = doctor_text(gpu_present(machine), refused=refused)
    assert "Your CUDA is broken" in text
    assert "gru: reset_after is False" in text


def test_this_machine() -> None:
    """The real TensorFlow can be asked, and agrees with its own list of devices."""
    tf = pytest.importorskip("tensorflow")
    report = tensorflow_report()
    assert report.present is bool(tf.config.list_physical_devices("GPU"))
    assert doctor_text(gpu_present(), report)
