"""A PEP 517 build backend: builds the library with cargo and writes the wheel.

SHOHIN_LIBRARY names a library that is already built, and is packed instead.
"""

import ast
import base64
import hashlib
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def project():
    """The tables of pyproject.toml that describe the package. Python before 3.11 reads no TOML; the values there, texts and lists of
    texts, are also Python's."""
    tables, key, value = {}, None, ""
    for line in (HERE / "pyproject.toml").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            table = tables.setdefault(line.strip("[] "), {})
        elif line and not line.startswith("#"):
            name, _, begins = line.partition(" = ") if key is None else (key, "", line)
            key, value = name, value + begins
            if value.count("[") == value.count("]"):
                table[key] = ast.literal_eval(value)
                key, value = None, ""
    found = tables["project"]
    found["urls"], found["optional-dependencies"] = tables["project.urls"], tables["project.optional-dependencies"]
    return found


PROJECT = project()
NAME, VERSION = PROJECT["name"], PROJECT["version"]
LIBRARIES = {"darwin": "libshohin_ffi.dylib", "win32": "shohin_ffi.dll"}


def library():
    built = os.environ.get("SHOHIN_LIBRARY")
    if built:
        return Path(built)
    root = HERE.parent.parent
    command = ["cargo", "build", "--release", "--package", "shohin-ffi"]
    subprocess.run(command, cwd=root, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    return root / target / "release" / LIBRARIES.get(sys.platform, "libshohin_ffi.so")


def licenses():
    """The texts of the licences, which the repository has at its root."""
    return {name: (HERE.parent.parent / name).read_bytes() for name in PROJECT["license-files"]}


def metadata():
    """What pyproject.toml says, as a wheel has it."""
    lines = [("Metadata-Version", "2.4"), ("Name", NAME), ("Version", VERSION), ("Summary", PROJECT["description"])]
    lines.append(("Keywords", ",".join(PROJECT["keywords"])))
    lines += [("Classifier", classifier) for classifier in PROJECT["classifiers"]]
    lines.append(("License-Expression", PROJECT["license"]))
    lines += [("License-File", name) for name in PROJECT["license-files"]]
    lines += [("Project-URL", f"{name}, {address}") for name, address in PROJECT["urls"].items()]
    lines.append(("Requires-Python", PROJECT["requires-python"]))
    for extra, packages in PROJECT["optional-dependencies"].items():
        lines.append(("Provides-Extra", extra))
        lines += [("Requires-Dist", f"{package}; extra == '{extra}'") for package in packages]
    lines.append(("Description-Content-Type", "text/markdown; charset=UTF-8"))
    description = (HERE / PROJECT["readme"]).read_text(encoding="utf-8")
    return "".join(f"{name}: {value}\n" for name, value in lines) + "\n" + description


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"py3-none-{platform}"
    info = f"{NAME}-{VERSION}.dist-info"
    wheel = f"{NAME}-{VERSION}-{tag}.whl"
    built = library()
    files = {f"{NAME}/{file.name}": file.read_bytes() for file in sorted((HERE / NAME).iterdir()) if file.suffix in (".py", ".typed")}
    files[f"{NAME}/libshohin{built.suffix}"] = built.read_bytes()
    files[f"{info}/METADATA"] = metadata().encode()
    for name, text in licenses().items():
        files[f"{info}/licenses/{name}"] = text
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: shohin\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    raise RuntimeError("a source distribution would lack the Rust source: build a wheel in the repository")
