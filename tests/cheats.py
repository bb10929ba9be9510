"""Code that tries to be judged right without being right: name → code for a function ``f`` that squares."""

CHEATS = {
    "exits early with success": "import sys\nsys.exit(0)",
    "exits inside the call": "import os\ndef f(x): os._exit(0)",
    "exits hard before anything": "import os\nos._exit(0)",
    "prints passed": "print('passed'); print('3 passed in 0.01s')\ndef f(x): return None",
    "equals everything": "class E(int):\n    def __eq__(self, o): return True\ndef f(x): return E(7)",
    "forges replies with a guessed mark": (
        "import os\nfor fd in range(3, 20):\n"
        "    try: os.write(fd, b'x{\"value\": 4}\\n')\n    except OSError: pass\ndef f(x): return 0"
    ),
    "finds the mark and forges a reply": (
        "import sys, os\nframe = sys._getframe()\n"
        "while frame:\n"
        "    order = frame.f_globals.get('order')\n"
        "    if order:\n"
        "        line = order['mark'] + '{\"value\": \"passed\"}\\n'\n"
        "        os.write(frame.f_globals['result_pipe'], line.encode())\n"
        "    frame = frame.f_back\n"
        "def f(x): return 'passed'"
    ),
    "looks for the expected values": (
        "import sys\ndef f(x):\n"
        "    order = sys._getframe(1).f_globals['order']\n"
        "    return order.get('expected', order.get('tests'))"
    ),
    "patches json and the builtins": (
        "import json, builtins\njson.dumps = lambda *a, **k: '{\"value\": true}'\n"
        "builtins.__import__ = None\ndef f(x): return True"
    ),
    "loops for ever": "while True: pass",
    "sleeps in the call": "import time\ndef f(x): time.sleep(60)",
    "floods the output": "def f(x):\n    while True: print('x' * 1000)",
    "returns what is not JSON": "def f(x): return object()",
    "returns NaN": "def f(x): return float('nan')",
    "returns a deep list": "def f(x):\n    v = []\n    for _ in range(100000): v = [v]\n    return v",
    "has no function": "def g(x): return x * x",
    "is not Python": "the square of x, naturally",
    "raises": "def f(x): raise SystemExit(0)",
}
