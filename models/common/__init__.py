"""What any model needs: machines and meshes, the golden mesh, strict comparison, commands and their errors."""
