"""Seeds of the fuzz targets: the agreed table of commands, the files of other
tools that imports are tested with, and the shipped policies."""

import pathlib
import re

here = pathlib.Path(__file__).parent
table = (here / "../tests/cases/commands.tsv").read_text(encoding="ascii").splitlines()[1:]


def decode(cell):
    one = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}

    def value(match):
        text = match.group(1)
        return one.get(text) or chr(int(text[1:], 16))

    return re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", value, cell)


for target in ("script", "argv", "smuggle", "repository", "import", "policy"):
    (here / "seeds" / target).mkdir(parents=True, exist_ok=True)
for line in table:
    name, command = line.split("\t")[:2]
    text = decode(command).encode("utf-8", "surrogatepass")
    for target in ("script", "smuggle"):
        (here / "seeds" / target / name).write_bytes(text)
    (here / "seeds/argv" / name).write_bytes(text.replace(b" ", b"\0"))
configuration = '[core]\n\tbare = false\n[remote "origin"]\n\turl = https://x\n[diff]\n\talgorithm = histogram\n'
(here / "seeds/repository/config").write_text(configuration)
# The first byte says whose rules they are: see the target.
imports = here / "../crates/policy/tests/import"
for first, pattern in enumerate(("codex/*.rules", "claude/*.json", "gemini/*.toml", "gemini/*.json")):
    for file in imports.glob(pattern):
        (here / "seeds/import" / file.name).write_bytes(bytes([first]) + file.read_bytes())
for file in (here / "../policies").rglob("*.toml"):
    (here / "seeds/policy" / f"{file.parent.name}-{file.name}").write_bytes(file.read_bytes())
