"""What models cost and how runs went: FLOPs, parameters, learning curves and tables."""
