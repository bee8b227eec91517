"""Classification of large sets of images in parallel: ``bmx-melius score``.

`images` lists the images of folders, record files and archives; `job` divides them into parts and resumes; `part` computes one part and
writes its Parquet file; `engines` distributes parts over processes, Dask or Ray. Nothing here needs MXNet.
"""
