locals {
  system_pool = {
    instance_types = var.system_pool.instance_types
    disk_gib       = 100
    efa_interfaces = 0
  }
  # One launch template a pool, "system" among them.
  pools = merge({ system = local.system_pool }, {
    for name, pool in var.gpu_pools : name => {
      instance_types = pool.instance_types
      disk_gib       = pool.disk_gib
      efa_interfaces = pool.efa_interfaces
    }
  })
  has_efa = anytrue([for pool in var.gpu_pools : pool.efa_interfaces > 0])
}

resource "aws_launch_template" "node" {
  for_each = local.pools

  name_prefix            = "${var.name}-${each.key}-"
  update_default_version = true
  tags                   = local.tags

  # IMDSv2 alone, and one hop: pods do not reach the node's identity.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_type           = "gp3"
      volume_size           = each.value.disk_gib
      encrypted             = true
      delete_on_termination = true
    }
  }

  # The first card carries IP as well, the others RDMA alone.
  dynamic "network_interfaces" {
    for_each = range(each.value.efa_interfaces)

    content {
      network_card_index          = network_interfaces.value
      device_index                = network_interfaces.value == 0 ? 0 : 1
      interface_type              = network_interfaces.value == 0 ? "efa" : "efa-only"
      associate_public_ip_address = false
      delete_on_termination       = true
      security_groups             = [aws_eks_cluster.this.vpc_config[0].cluster_security_group_id, aws_security_group.efa[0].id]
    }
  }

  dynamic "placement" {
    for_each = each.value.efa_interfaces > 0 ? [1] : []

    content {
      group_name = aws_placement_group.efa[each.key].name
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume", "network-interface"])

    content {
      resource_type = tag_specifications.value
      tags          = merge(local.tags, { Name = "${var.name}-${each.key}" })
    }
  }
}

resource "aws_placement_group" "efa" {
  for_each = { for name, pool in local.pools : name => pool if pool.efa_interfaces > 0 }

  name     = "${var.name}-${each.key}"
  strategy = "cluster"
  tags     = local.tags
}

# RDMA goes from group to group by name: a rule for all addresses does not let it through.
resource "aws_security_group" "efa" {
  count = local.has_efa ? 1 : 0

  name_prefix = "${var.name}-efa-"
  description = "Traffic between workers over EFA"
  vpc_id      = module.network.vpc_id
  tags        = merge(local.tags, { Name = "${var.name}-efa" })

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "efa" {
  count = local.has_efa ? 1 : 0

  security_group_id            = aws_security_group.efa[0].id
  description                  = "From other workers"
  referenced_security_group_id = aws_security_group.efa[0].id
  ip_protocol                  = "-1"
  tags                         = local.tags
}

resource "aws_vpc_security_group_egress_rule" "efa" {
  count = local.has_efa ? 1 : 0

  security_group_id            = aws_security_group.efa[0].id
  description                  = "To other workers"
  referenced_security_group_id = aws_security_group.efa[0].id
  ip_protocol                  = "-1"
  tags                         = local.tags
}

# Ray's head, the routers and the operators: on demand, never taken away.
resource "aws_eks_node_group" "system" {
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = "system"
  node_role_arn   = aws_iam_role.node.arn
  subnet_ids      = module.network.private_subnet_ids
  ami_type        = "AL2023_x86_64_STANDARD"
  capacity_type   = "ON_DEMAND"
  instance_types  = local.system_pool.instance_types
  labels          = { "chairlift/pool" = "system" }
  tags            = local.tags

  launch_template {
    id      = aws_launch_template.node["system"].id
    version = aws_launch_template.node["system"].latest_version
  }

  scaling_config {
    min_size     = var.system_pool.min
    desired_size = var.system_pool.min
    max_size     = var.system_pool.max
  }

  update_config {
    max_unavailable = 1
  }

  lifecycle {
    ignore_changes = [scaling_config[0].desired_size] # the autoscaler's
  }

  depends_on = [aws_iam_role_policy_attachment.node, aws_eks_addon.vpc_cni, aws_eks_addon.kube_proxy]
}

resource "aws_eks_node_group" "gpu" {
  for_each = var.gpu_pools

  cluster_name    = aws_eks_cluster.this.name
  node_group_name = each.key
  node_role_arn   = aws_iam_role.node.arn
  # Machines with EFA talk within one zone; the others take whatever zone has some.
  subnet_ids     = each.value.efa_interfaces > 0 ? slice(module.network.private_subnet_ids, 0, 1) : module.network.private_subnet_ids
  ami_type       = "AL2023_x86_64_NVIDIA"
  capacity_type  = each.value.spot ? "SPOT" : "ON_DEMAND"
  instance_types = each.value.instance_types
  tags           = local.tags

  labels = {
    "chairlift/pool"         = each.key
    "nvidia.com/gpu.present" = "true" # NVIDIA's device plugin goes where this is
  }

  taint {
    key    = "nvidia.com/gpu"
    value  = "present"
    effect = "NO_SCHEDULE"
  }

  launch_template {
    id      = aws_launch_template.node[each.key].id
    version = aws_launch_template.node[each.key].latest_version
  }

  scaling_config {
    min_size     = each.value.min
    desired_size = each.value.min
    max_size     = each.value.max
  }

  update_config {
    max_unavailable = 1
  }

  lifecycle {
    ignore_changes = [scaling_config[0].desired_size] # the autoscaler's
  }

  depends_on = [aws_iam_role_policy_attachment.node, aws_eks_addon.vpc_cni, aws_eks_addon.kube_proxy]
}
