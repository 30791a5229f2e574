// Stands in for CUDA's cuda_bf16.h: the emulator brings everything in one header.
#pragma once
#include "cuda_on_cpu.h"
