"""Is there a GPU that can run cuDNN, and if not, why?

"There" means: an NVIDIA GPU that this process may use, its driver's library, a TensorFlow built with CUDA, and the
cuDNN that this TensorFlow opens. ROCm, DirectML and Metal devices have no cuDNN.

Two ways to find out. `gpu_present` reads files only: it imports no TensorFlow, opens no library and starts no CUDA, so
it is fast and safe, but it can be wrong about an installation that is broken inside. `tensorflow_report` asks
TensorFlow and the driver; it takes no GPU memory. `doctor_text` words what was found.
"""

from __future__ import annotations

import ast
import ctypes
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

State = Literal["ready", "absent", "hidden", "broken"]

INSTALL_CUDA = 'pip install "tensorflow[and-cuda]"'

#: Packages that give TensorFlow a GPU without cuDNN, with what to call them. Names as folders spell them.
FOREIGN_PACKAGES = {
    "tensorflow_rocm": "ROCm (AMD)",
    "tensorflow_directml": "DirectML",
    "tensorflow_directml_plugin": "DirectML",
    "tensorflow_metal": "Metal (Apple)",
}

#: Where the dynamic linker looks without being told, beside what its cache names.
LIBRARY_FOLDERS = ("lib", "lib64", "usr/lib", "usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")

#: Results of cuInit that say what is wrong (cuda.h, enum CUresult).
DRIVER_ERRORS = {
    34: "CUDA_ERROR_STUB_LIBRARY: a stub of libcuda was found, not the driver's",
    100: "CUDA_ERROR_NO_DEVICE: the driver sees no GPU",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: the driver's library and kernel module differ in version",
    804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: the driver is too old for this CUDA",
    999: "CUDA_ERROR_UNKNOWN: the driver does not answer",
}
NO_DEVICE = 100


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: "device", "visible", "driver", "tensorflow" or "cudnn".
        ok: it is as cuDNN needs it.
        message: what was found.
        remedy: what to do about it; empty if `ok`.
    """

    check: str
    ok: bool
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class DeviceReport:
    """What was found, in the order in which things depend on each other. `source`: "files" or "tensorflow"."""

    source: str
    reasons: tuple[Finding, ...]

    @property
    def present(self) -> bool:
        """A cuDNN-capable GPU is there."""
        return all(finding.ok for finding in self.reasons)

    @property
    def state(self) -> State:
        """ready; absent: no NVIDIA GPU; hidden: the environment hides it; broken: it is there and cannot be used."""
        failed = next((finding.check for finding in self.reasons if not finding.ok), None)
        if failed is None:
            return "ready"
        if failed == "device":
            return "absent"
        return "hidden" if failed == "visible" else "broken"

    @property
    def remedy(self) -> str:
        """What to do first; empty if nothing is wrong or nothing can be done."""
        return next((finding.remedy for finding in self.reasons if not finding.ok), "")


@dataclass(frozen=True)
class Machine:
    """Where to look; the tests give other places."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    site_folders: Sequence[Path] = field(default_factory=lambda: [Path(entry) for entry in sys.path if entry])
    platform: str = sys.platform

    def matching(self, pattern: str) -> list[str]:
        """Names of what matches a pattern under the root, as the machine itself would write them."""
        return sorted("/" + str(path.relative_to(self.root)) for path in self.root.glob(pattern))

    def library(self, name: str) -> str | None:
        """Where the dynamic linker would find a library, without loading it."""
        folders = [Path(entry) for entry in self.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
        folders += [self.root / entry for entry in LIBRARY_FOLDERS]
        found = next((folder / name for folder in folders if (folder / name).exists()), None)
        if found is not None:
            return str(found)
        try:
            cache = (self.root / "etc/ld.so.cache").read_bytes()
        except OSError:
            return None
        return "the linker's cache" if name.encode() + b"\0" in cache else None


def gpu_present(machine: Machine | None = None) -> DeviceReport:
    """Look for a cuDNN-capable GPU in files alone. Takes a few milliseconds."""
    machine = machine or Machine()
    return DeviceReport("files", (*_device_findings(machine), *_tensorflow_findings(machine)))


def _device_findings(machine: Machine) -> list[Finding]:
    """GPU, whether this process may see it, and the driver's library."""
    if machine.platform != "linux":
        message = f"TensorFlow has no CUDA on this system ({machine.platform})"
        remedy = "Under Windows, run it in WSL 2." if machine.platform == "win32" else ""
        return [Finding("device", False, message, remedy)]
    devices = machine.matching("dev/nvidia[0-9]*") or machine.matching("proc/driver/nvidia/gpus/*")
    counted = len(devices)
    if not devices:  # Jetson boards, then WSL 2, whose one device serves GPUs of every make
        devices = machine.matching("dev/nvhost-gpu") or machine.matching("dev/nvgpu/*")
    if not devices and machine.matching("usr/lib/wsl/lib/libcuda.so*"):
        devices = machine.matching("dev/dxg")
    if not devices:
        return [Finding("device", False, "no NVIDIA GPU (no /dev/nvidia0)", _missing_device_remedy(machine))]
    findings = [
        Finding("device", True, f"NVIDIA GPU: {', '.join(devices)}"),
        _visible(machine.environ, counted),
    ]
    driver = machine.library("libcuda.so.1")
    if driver is None:
        findings.append(
            Finding(
                "driver",
                False,
                "the driver's library libcuda.so.1 is not on the library path",
                "Install the NVIDIA driver; in a container, start it with GPUs (docker run --gpus all).",
            )
        )
    else:
        version = _driver_version(machine)
        findings.append(Finding("driver", True, f"driver{' ' + version if version else ''}: libcuda.so.1 in {driver}"))
    return findings


def _missing_device_remedy(machine: Machine) -> str:
    if machine.matching("dev/nvidiactl") or machine.matching("proc/driver/nvidia/version"):
        return "The driver is loaded but shows no GPU: see nvidia-smi; in a container, start it with GPUs."
    return ""


def _driver_version(machine: Machine) -> str:
    try:
        text = (machine.root / "proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return ""
    match = re.search(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", text)
    return match.group(1) if match else ""


def _visible(environ: Mapping[str, str], counted: int) -> Finding:
    """Does CUDA_VISIBLE_DEVICES leave a GPU? CUDA takes the list up to the first entry that names none.

    Args:
        environ: the environment.
        counted: how many GPUs there are; 0 if that is not known.
    """
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return Finding("visible", True, "CUDA_VISIBLE_DEVICES is not set")
    first = value.split(",")[0].strip()
    by_number = re.fullmatch(r"\d+", first) is not None and (counted == 0 or int(first) < counted)
    if by_number or first.startswith(("GPU-", "MIG-")):
        return Finding("visible", True, f"CUDA_VISIBLE_DEVICES={value}")
    return Finding(
        "visible",
        False,
        f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU",
        "Unset CUDA_VISIBLE_DEVICES, or name a GPU in it: CUDA_VISIBLE_DEVICES=0.",
    )


def _tensorflow_findings(machine: Machine) -> list[Finding]:
    """TensorFlow's build and the cuDNN that it would open."""
    packages = {name for folder in machine.site_folders for name in _packages(folder)}
    foreign = next((label for name, label in FOREIGN_PACKAGES.items() if name in packages), None)
    build = next((build for folder in machine.site_folders if (build := _build_info(folder)) is not None), None)
    if build is None:
        return [Finding("tensorflow", False, "TensorFlow is not installed", INSTALL_CUDA)]
    finding = _build_finding(build, foreign)
    if not finding.ok:
        return [finding]
    return [finding, _cudnn_file(machine, _major(build))]


def _build_finding(build: Mapping[str, Any], foreign: str | None) -> Finding:
    if build.get("is_cuda_build"):
        return Finding("tensorflow", True, f"TensorFlow is built with CUDA {build.get('cuda_version', '')}".rstrip())
    if build.get("is_rocm_build"):
        foreign = FOREIGN_PACKAGES["tensorflow_rocm"]
    if foreign is not None:
        message = f"TensorFlow runs on {foreign}, which has no cuDNN"
        return Finding("tensorflow", False, message, "cuDNN needs an NVIDIA GPU and TensorFlow built with CUDA.")
    message = "TensorFlow is built without CUDA (a CPU-only package)"
    return Finding("tensorflow", False, message, f"pip uninstall tensorflow-cpu, then {INSTALL_CUDA}")


def _packages(folder: Path) -> set[str]:
    """Installed distributions in a folder of sys.path, by their folders; importlib.metadata costs 50 ms to import."""
    return {path.name.split("-")[0].lower() for path in folder.glob("tensorflow*.dist-info")}


def _build_info(folder: Path) -> dict[str, Any] | None:
    """What TensorFlow's generated module build_info.py says of the build, read without importing it."""
    try:
        source = (folder / "tensorflow/python/platform/build_info.py").read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return None
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "build_info"
        ):
            value = node.value.args[0] if isinstance(node.value, ast.Call) and node.value.args else node.value
            try:
                return dict(ast.literal_eval(value))
            except (ValueError, TypeError):
                return {}
    return {}


def _major(build: Mapping[str, Any]) -> str:
    """The cuDNN that this TensorFlow opens, by its major version."""
    return str(build.get("cudnn_version", "9")).split(".")[0]


def _cudnn_file(machine: Machine, major: str) -> Finding:
    name = f"libcudnn.so.{major}"
    packaged = [folder / "nvidia/cudnn/lib" / name for folder in machine.site_folders]
    found = next((str(path) for path in packaged if path.exists()), None) or machine.library(name)
    if found is not None:
        return Finding("cudnn", True, f"cuDNN {major}: {name} in {found}")
    others = sorted(path.name for folder in packaged for path in folder.parent.glob("libcudnn.so.*"))
    message = f"cuDNN {major} ({name}) is neither in site-packages/nvidia/cudnn nor on the library path"
    return Finding("cudnn", False, message + (f"; found {', '.join(others)}" if others else ""), INSTALL_CUDA)


def tensorflow_report(
    tf: Any = None,
    *,
    environ: Mapping[str, str] | None = None,
    load: Callable[[str], Any] = ctypes.CDLL,
) -> DeviceReport:
    """Ask TensorFlow and the driver. Imports TensorFlow (seconds), starts CUDA, takes no GPU memory.

    Args:
        tf: the module; None imports it.
        environ: the environment; None is the process's own.
        load: opens a shared library by name.
    """
    if tf is None:
        try:
            tf = importlib.import_module("tensorflow")
        except ImportError as error:
            finding = Finding("tensorflow", False, f"TensorFlow cannot be imported: {error}", INSTALL_CUDA)
            return DeviceReport("tensorflow", (finding,))
    build = dict(tf.sysconfig.get_build_info())
    built = _build_finding(build, None)
    listed = tf.config.list_physical_devices("GPU") if built.ok else []
    findings = []
    if listed:
        names = ", ".join(str(device.name).removeprefix("/physical_device:") for device in listed)
        findings.append(Finding("device", True, f"TensorFlow lists {names}"))
        if not tf.config.get_visible_devices("GPU"):
            message = "this program hides every GPU (tf.config.set_visible_devices)"
            findings.append(Finding("visible", False, message, "Remove the call."))
    else:
        findings.append(_driver_finding(os.environ if environ is None else environ, load))
    findings.append(built)
    if built.ok:
        findings.append(_cudnn_loaded(_major(build), load))
    if not listed and all(finding.ok for finding in findings):
        message = "TensorFlow lists no GPU although driver and cuDNN answer: another CUDA library cannot be opened"
        remedy = f"{INSTALL_CUDA}; TensorFlow's own log names the library."
        findings.append(Finding("tensorflow", False, message, remedy))
    return DeviceReport("tensorflow", tuple(findings))


def _driver_finding(environ: Mapping[str, str], load: Callable[[str], Any]) -> Finding:
    """What the driver itself says: cuInit, then the number of GPUs. Takes no GPU memory."""
    visible = _visible(environ, 0)
    if not visible.ok:
        return visible
    try:
        driver = load("libcuda.so.1")
    except OSError as error:
        return Finding("device", False, f"no NVIDIA driver: {error}", "")
    code = int(driver.cuInit(0))
    if code == NO_DEVICE:
        return Finding("device", False, f"cuInit: {DRIVER_ERRORS[code]}", "See nvidia-smi.")
    if code != 0:
        message = f"cuInit fails with {code} ({DRIVER_ERRORS.get(code, 'see cuda.h, CUresult')})"
        return Finding("driver", False, message, "Reinstall the NVIDIA driver, reboot, and try nvidia-smi.")
    count = ctypes.c_int(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    return Finding("driver", True, f"the driver answers and counts {count.value} GPU(s)")


def _cudnn_loaded(major: str, load: Callable[[str], Any]) -> Finding:
    """Opens the cuDNN that TensorFlow opens. Where TensorFlow lists GPUs it has opened it already."""
    name = f"libcudnn.so.{major}"
    packaged = [str(Path(entry, "nvidia/cudnn/lib", name)) for entry in sys.path if entry]
    error: OSError | None = None
    for candidate in (name, *(path for path in packaged if Path(path).exists())):
        try:
            library = load(candidate)
        except OSError as caught:
            error = error or caught
            continue
        library.cudnnGetVersion.restype = ctypes.c_size_t
        return Finding("cudnn", True, f"cuDNN {library.cudnnGetVersion()} opens ({candidate})")
    return Finding("cudnn", False, f"cuDNN {major} cannot be opened: {error}", INSTALL_CUDA)


VERDICTS: dict[State, str] = {
    "ready": "A GPU with cuDNN is ready: fused layers run on it.",
    "absent": "No GPU with cuDNN here: models run with standard layers, and fused layers with a portable loop.",
    "hidden": "There is a GPU, but this process may not see it.",
    "broken": "Your CUDA is broken: TensorFlow cannot use the GPU that is here. Not your model is at fault.",
}


def doctor_text(
    files: DeviceReport,
    tensorflow: DeviceReport | None = None,
    refused: Iterable[tuple[str, str]] = (),
) -> str:
    """What was found, the conclusion and the remedy, as lines of text.

    Args:
        files: from `gpu_present`.
        tensorflow: from `tensorflow_report`.
        refused: path and reason of each layer of a model that cannot run on cuDNN.
    """
    lines: list[str] = []
    for report in (files, tensorflow):
        if report is not None:
            lines.append("GPU, as files tell" if report.source == "files" else "GPU, as TensorFlow tells")
            lines += [f"  {'ok' if finding.ok else 'NO':<3} {finding.message}" for finding in report.reasons]
    state, remedy = _conclusion(files, tensorflow)
    lines.append(VERDICTS[state])
    if remedy:
        lines.append(f"  Remedy: {remedy}")
    layers = [f"  {path}: {reason}" for path, reason in refused]
    if layers:
        lines += ["These layers of your model cannot use cuDNN, on any GPU:", *layers]
    elif state == "ready":
        lines.append("Which layers of a model can use it: lstm-swap inspect MODEL --to fused")
    return "\n".join(lines)


def _conclusion(files: DeviceReport, tensorflow: DeviceReport | None) -> tuple[State, str]:
    """State and remedy from both: files know whether a GPU is there, TensorFlow knows whether it works."""
    if tensorflow is None:
        return files.state, files.remedy
    if tensorflow.present:
        return "ready", ""
    if files.present:
        return "hidden" if tensorflow.state == "hidden" else "broken", tensorflow.remedy
    return files.state, files.remedy
