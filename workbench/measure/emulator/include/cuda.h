// Stands in for CUDA's cuda.h: the emulator brings everything in one header.
#pragma once
#include "cuda_on_cpu.h"
