resource "aws_cloudwatch_log_group" "cluster" {
  # checkov:skip=CKV_AWS_338:a year by default; examples that are to be thrown away keep a month
  name              = "/aws/eks/${var.name}/cluster" # the name that EKS writes to
  retention_in_days = var.log_days
  kms_key_id        = module.key.arn
  tags              = local.tags
}

resource "aws_eks_cluster" "this" {
  name                          = var.name
  version                       = var.kubernetes_version
  role_arn                      = aws_iam_role.cluster.arn
  enabled_cluster_log_types     = ["api", "audit", "authenticator", "controllerManager", "scheduler"]
  bootstrap_self_managed_addons = false
  deletion_protection           = var.deletion_protection
  tags                          = local.tags

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true # whoever applies this also installs the charts
  }

  encryption_config {
    resources = ["secrets"]

    provider {
      key_arn = module.key.arn
    }
  }

  upgrade_policy {
    support_type = "STANDARD" # be upgraded rather than pay for extended support unasked
  }

  vpc_config {
    subnet_ids              = module.network.private_subnet_ids
    endpoint_private_access = true
    endpoint_public_access  = length(var.api_cidrs) > 0
    public_access_cidrs     = length(var.api_cidrs) > 0 ? var.api_cidrs : null
  }

  depends_on = [aws_iam_role_policy_attachment.cluster, aws_cloudwatch_log_group.cluster]
}

resource "aws_eks_access_entry" "admin" {
  for_each = var.admin_arns

  cluster_name  = aws_eks_cluster.this.name
  principal_arn = each.value
  tags          = local.tags
}

resource "aws_eks_access_policy_association" "admin" {
  for_each = var.admin_arns

  cluster_name  = aws_eks_cluster.this.name
  principal_arn = aws_eks_access_entry.admin[each.key].principal_arn
  policy_arn    = "arn:${local.partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"

  access_scope {
    type = "cluster"
  }
}

# Without a version each is the one that EKS recommends for the cluster's.
resource "aws_eks_addon" "vpc_cni" {
  cluster_name = aws_eks_cluster.this.name
  addon_name   = "vpc-cni"
  tags         = local.tags

  # The manifests' NetworkPolicy is enforced by it.
  configuration_values = jsonencode({ enableNetworkPolicy = "true" })
}

resource "aws_eks_addon" "kube_proxy" {
  cluster_name = aws_eks_cluster.this.name
  addon_name   = "kube-proxy"
  tags         = local.tags
}

resource "aws_eks_addon" "coredns" {
  cluster_name = aws_eks_cluster.this.name
  addon_name   = "coredns"
  tags         = local.tags
  depends_on   = [aws_eks_node_group.system]
}

resource "aws_eks_addon" "ebs_csi" {
  cluster_name             = aws_eks_cluster.this.name
  addon_name               = "aws-ebs-csi-driver"
  service_account_role_arn = aws_iam_role.pod["ebs-csi"].arn
  tags                     = local.tags
  depends_on               = [aws_eks_node_group.system]
}

# The weights as a folder of each pod that serves.
resource "aws_eks_addon" "s3_csi" {
  cluster_name             = aws_eks_cluster.this.name
  addon_name               = "aws-mountpoint-s3-csi-driver"
  service_account_role_arn = aws_iam_role.pod["s3-csi"].arn
  configuration_values     = jsonencode({ node = { tolerateAllTaints = true } }) # on machines with GPUs too
  tags                     = local.tags
  depends_on               = [aws_eks_node_group.system]
}
