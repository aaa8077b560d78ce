"""From a prepared split to batches, in this order.

`splits` opens the file of a split, `draws` draws the random numbers of an image, `crops` turns them
into what is cut out of it, `ffcv_crops` or `torchvision_crops` decodes and cuts, `photometric`
changes the colours, `epochs` hands out batches, and `loaders` holds what training and
evaluation open. The code that numba compiles is in `kernels`, `kernels_cut` and
`kernels_photometric`.
"""
