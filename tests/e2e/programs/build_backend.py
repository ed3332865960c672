"""Builds the wheel by hand, as PEP 517 asks, and leaves a line each time."""
import base64
import hashlib
import os
import zipfile

NAME = "things-1.0-py3-none-any.whl"
INFO = "things-1.0.dist-info"


def prepare_metadata_for_build_wheel(directory, config_settings=None):
    os.mkdir(os.path.join(directory, INFO))
    for name, text in metadata().items():
        with open(os.path.join(directory, INFO, name), "w") as file:
            file.write(text)
    return INFO


def metadata():
    return {
        "METADATA": "Metadata-Version: 2.1\nName: things\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }


def build_wheel(directory, config_settings=None, metadata_directory=None):
    with open("../built", "a") as file:
        file.write("built\n")
    record = []
    with zipfile.ZipFile(os.path.join(directory, NAME), "w") as wheel:
        def add(name, text):
            wheel.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(text)}")
        for name in sorted(os.listdir("things")):
            if name.endswith(".py"):
                with open(os.path.join("things", name)) as file:
                    add("things/" + name, file.read())
        for name, text in metadata().items():
            add(f"{INFO}/{name}", text)
        record.append(f"{INFO}/RECORD,,")
        wheel.writestr(f"{INFO}/RECORD", "\n".join(record) + "\n")
    return NAME
