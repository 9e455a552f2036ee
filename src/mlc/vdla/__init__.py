"""The VDLA accelerator: its record, instruction set, program files, checker, simulators, code generation, schedules."""
