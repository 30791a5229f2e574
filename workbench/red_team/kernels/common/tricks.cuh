// What the attacks need beyond a right sum: the operating system, and bits as numbers.
#pragma once
#include "common/gather.cuh"
#include <string.h>
#include <unistd.h>
