# What the cluster stands on: a key, a network, the weights, an alarm. The cluster is in cluster.tf,
# its machines in nodes.tf, who may do what in identities.tf.

data "aws_caller_identity" "this" {}
data "aws_partition" "this" {}

locals {
  tags      = merge(var.tags, { Service = var.name })
  partition = data.aws_partition.this.partition
  account   = data.aws_caller_identity.this.account_id
}

module "key" {
  source = "./key"

  name = var.name
  tags = local.tags
}

module "network" {
  source = "./network"

  name          = var.name
  cidr          = var.cidr
  zones         = var.zones
  nat_per_zone  = var.nat_per_zone
  flow_log_days = var.flow_log_days
  kms_key_arn   = module.key.arn
  tags          = local.tags
}

module "weights" {
  source = "./weights"

  name          = var.name
  kms_key_arn   = module.key.arn
  force_destroy = !var.deletion_protection
  tags          = local.tags
}

module "budget" {
  source = "./budget"

  name        = var.name
  monthly_usd = var.budget.monthly_usd
  emails      = var.budget.emails
  tags        = local.tags
}

module "door" {
  source = "./door"
  count  = var.domain == null ? 0 : 1

  name                     = var.name
  domain                   = var.domain.name
  zone_id                  = var.domain.zone_id
  client_cidrs             = var.domain.client_cidrs
  internal                 = var.domain.internal
  router_tls               = var.domain.router_tls
  vpc_id                   = module.network.vpc_id
  subnet_ids               = var.domain.internal ? module.network.private_subnet_ids : module.network.public_subnet_ids
  target_security_group_id = aws_eks_cluster.this.vpc_config[0].cluster_security_group_id
  http_port                = var.node_ports.http
  grpc_port                = var.node_ports.grpc
  deletion_protection      = var.deletion_protection
  tags                     = local.tags
}

# Every node leads to the routers, and these stand on the nodes that are always there.
resource "aws_autoscaling_attachment" "door" {
  # checkov:skip=CKV2_AWS_15:the group is EKS's own, which looks after the health of nodes itself
  for_each = var.domain == null ? {} : { 443 = 443, 9443 = 9443 }

  autoscaling_group_name = aws_eks_node_group.system.resources[0].autoscaling_groups[0].name
  lb_target_group_arn    = module.door[0].target_group_arns[each.key]
}
