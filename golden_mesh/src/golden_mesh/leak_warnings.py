"""nanobind's list of leaked objects at exit, switched off.

ttnn's Python binding is made with nanobind. At exit nanobind writes lines ("nanobind: leaked 2 instances!") for objects
that a program still holds, for example a tensor in a global variable. They say nothing about the program.
nanobind has a switch for these lines (nb::set_leak_warnings), for C++ only. Here it is set in nanobind's own record of
the process, so stderr stays as it is.
"""

import ctypes
import os
import sys

# struct nb_internals of nanobind: version in its key -> bytes before `bool print_leak_warnings`. A second bool and the
# pointer `bool *is_alive_ptr` follow.
_OFFSETS = {"v20": 536}
_BOTH_ON = b"\1\1"  # print_leak_warnings and print_implicit_cast_warnings, as nanobind starts
_POINTER_AFTER = 8


def switch_off() -> bool:
    """Switch the lines off, after the import of ttnn. Returns whether the switch was found: an unknown version of
    nanobind keeps its lines.
    """
    records = [
        (offset, capsule)
        for key, capsule in _interpreter_dict().items()
        for version, offset in _OFFSETS.items()
        if str(key).startswith(f"__nb_internals_{version}_")
    ]
    return bool(records) and all(_switch_off(offset, capsule) for offset, capsule in records)


def _switch_off(offset: int, capsule) -> bool:
    python = ctypes.pythonapi
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    switch = python.PyCapsule_GetPointer(capsule, b"nb_internals") + offset
    is_alive = ctypes.c_void_p.from_address(switch + _POINTER_AFTER).value or 0
    if ctypes.string_at(switch, len(_BOTH_ON)) != _BOTH_ON or not _in_ttnn(is_alive):
        return False  # another struct than ours
    ctypes.c_bool.from_address(switch).value = False
    return True


def _interpreter_dict() -> dict:
    python = ctypes.pythonapi
    python.PyInterpreterState_Get.restype = ctypes.c_void_p
    python.PyInterpreterState_GetDict.restype = ctypes.c_void_p  # a borrowed reference
    python.PyInterpreterState_GetDict.argtypes = [ctypes.c_void_p]
    borrowed = python.PyInterpreterState_GetDict(python.PyInterpreterState_Get())
    return ctypes.cast(borrowed, ctypes.py_object).value


def _in_ttnn(address: int) -> bool:
    """Whether the address is memory of ttnn's binding."""
    library = os.path.realpath(sys.modules["ttnn._ttnn"].__file__)
    with open("/proc/self/maps") as lines:
        ranges = [line.split()[0] for line in lines if line.rstrip().endswith(library)]
    bounds = [[int(bound, 16) for bound in entry.split("-")] for entry in ranges]
    return any(start <= address < end for start, end in bounds)
