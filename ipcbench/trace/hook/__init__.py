"""What `ipcbench trace run` puts before a program: recording begins in it and in its Python children by themselves."""
