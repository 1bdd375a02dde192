"""golden-mesh compare: the error of each device operation against float32."""
