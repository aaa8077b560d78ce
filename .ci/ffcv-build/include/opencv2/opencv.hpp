// Stands in for OpenCV's header of the same name, which includes every module: see opencv4.pc beside this folder.
#pragma once
#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>
