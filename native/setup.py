"""Builds the extension module with CMake; everything else is in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ninja
import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent.resolve()


class CMakeBuild(build_ext):
    """Builds the extension with the cmake and ninja of this Python and puts it where setuptools expects it."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).parent.resolve()
        build = Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        cmake = [sys.executable, "-m", "cmake"]
        configure = [
            *("-S", str(HERE), "-B", str(build), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR) / 'ninja'}",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        ]
        subprocess.run([*cmake, *configure], check=True)
        subprocess.run([*cmake, "--build", str(build), "--target", "_core"], check=True)


setup(ext_modules=[Extension("dsx_native._core", sources=[])], cmdclass={"build_ext": CMakeBuild})
