"""Seeds of the fuzz targets, from the agreed table of commands."""

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


for target in ("script", "argv", "smuggle", "repository"):
    (here / "seeds" / target).mkdir(parents=True, exist_ok=True)
for line in table:
    name, command = line.split("\t")[:2]
    text = decode(command).encode("utf-8", "surrogatepass")
    for target in ("script", "smuggle"):
        (here / "seeds" / target / name).write_bytes(text)
    (here / "seeds/argv" / name).write_bytes(text.replace(b" ", b"\0"))
configuration = '[core]\n\tbare = false\n[remote "origin"]\n\turl = https://x\n[diff]\n\talgorithm = histogram\n'
(here / "seeds/repository/config").write_text(configuration)
