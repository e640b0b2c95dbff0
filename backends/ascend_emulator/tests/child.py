"""Runs one function of a test file in a process of its own: child.py FILE FUNCTION ARGUMENTS_AS_JSON.

What it returns is the last line of stdout, as JSON.
"""

import importlib.util
import json
import sys
from pathlib import Path


def main():
    file, function, arguments = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parent))
    spec = importlib.util.spec_from_file_location("test_file", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    print(json.dumps(getattr(module, function)(*json.loads(arguments))), flush=True)


if __name__ == "__main__":
    main()
