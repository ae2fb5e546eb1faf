"""A peer that is only a file: worked solutions as records in a shared folder.

    python data/examples/worked_solutions.py runs/folder
    python mini_mrl.py --pair data/tiny/qwen-tiny --mode sgt --set exchange=runs/folder

The second command trains a team of one. Where all attempts of `qwen-tiny` at a problem fail, it
imitates the solution in the file. The file could hold solutions of a data set, of a model behind an
API, or of a run that ended long ago; data/README.md describes its lines. This script writes the
solutions of `llama-tiny`, a model that never has to run while `qwen-tiny` learns.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
