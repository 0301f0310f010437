"""Workers of a batch: in this process, in processes of this machine, in a cluster; one protocol for all."""
