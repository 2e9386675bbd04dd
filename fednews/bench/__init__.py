"""What a round costs on this machine: ``fednews bench``."""
