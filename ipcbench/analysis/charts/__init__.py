"""What the plots of a run show: which figures, on which axes, in which groups. Drawing is render/."""
