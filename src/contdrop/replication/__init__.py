"""The paper's studies, data sets, networks, pretrained weights and claims."""
