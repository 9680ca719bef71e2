# The compiled cffi module; `_lib` gives its contents types.
from typing import Any

ffi: Any
lib: Any
